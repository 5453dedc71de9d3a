from dg_lsp.models.download import plain_text


def test_an_article_is_its_paragraphs():
    page = (
        "<nav>Home</nav><article><h1>Terms</h1><p>Be\n <b>good</b>, &amp;<br>kind.</p><script>x()</script></article>End"
    )
    assert plain_text(page) == "Terms\nBe good, &\nkind."


def test_a_page_without_an_article_is_taken_whole():
    assert plain_text("<head><title>T</title></head><p>One<p>Two") == "One\nTwo"


def test_plain_text_stays():
    assert plain_text("as it is") == "as it is"
