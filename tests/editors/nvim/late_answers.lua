-- A language server inside the editor that answers when the test calls `late.answer`.

late = { requests = {}, cancelled = {}, edits = {} }

local number = 0

local function server(dispatchers)
  local rpc, is_closing = {}, false
  function rpc.request(method, params, callback, on_reply)
    number = number + 1
    local id = number
    if method == "initialize" then
      local capabilities =
        { inlineCompletionProvider = vim.empty_dict(), positionEncoding = "utf-8", textDocumentSync = 1 }
      vim.schedule(function()
        callback(nil, { capabilities = capabilities })
      end)
    elseif method == "textDocument/inlineCompletion" then
      table.insert(late.requests, {
        id = id,
        position = params.position,
        kind = params.context.triggerKind,
        answer = function(result)
          if on_reply then
            on_reply(id)
          end
          callback(nil, result)
        end,
      })
    elseif method == "dg-lsp/nextEdit" then
      table.insert(late.edits, callback)
    else
      vim.schedule(function()
        callback(nil, vim.NIL)
      end)
    end
    return true, id
  end
  function rpc.notify(method, params)
    if method == "$/cancelRequest" then
      table.insert(late.cancelled, params.id)
    elseif method == "exit" then
      dispatchers.on_exit(0, 0)
    end
    return true
  end
  function rpc.is_closing()
    return is_closing
  end
  function rpc.terminate()
    is_closing = true
  end
  return rpc
end

function late.start()
  vim.lsp.start({ name = "dg_lsp", cmd = server, root_dir = vim.fn.getcwd() })
end

-- Answers the `index`th request with completions at its position.
function late.answer(index, ...)
  local request = late.requests[index]
  local range = { start = request.position, ["end"] = request.position }
  request.answer({
    items = vim.tbl_map(function(text)
      return { insertText = text, range = range }
    end, { ... }),
  })
end

-- Answers the `index`th request for a next edit with one that inserts an "x" at the start of the second line.
function late.edit(index)
  local position = { line = 1, character = 0 }
  local command = { title = "", command = "dg-lsp.accepted", arguments = { "item" } }
  local edit = { text = "x", range = { start = position, ["end"] = position }, places = 1, command = command }
  late.edits[index](nil, { edits = { edit }, reason = "" })
end
