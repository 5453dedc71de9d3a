# A server for a team: docker build -t dg-lsp .      with a GPU, not tested: --build-arg CUDA=13.0.2, and run --gpus all
# docker run --rm -it -v dg-lsp:/data --entrypoint dg-lsp dg-lsp models pull MODEL
# docker run -p 127.0.0.1:8012:8012 -e DG_LSP_API_KEY=... -v dg-lsp:/data dg-lsp [--model MODEL]
# It needs a processor with AVX2; llama.cpp is not compiled for the processor of the machine that builds.
ARG CUDA=""
ARG BASE=${CUDA:+nvidia/cuda:${CUDA}-devel-ubuntu24.04}

FROM ${BASE:-ubuntu:24.04} AS build
ARG CUDA
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv python3-dev build-essential cmake git
WORKDIR /source
COPY requirements.lock ./
RUN python3 -m venv /opt/dg-lsp && \
    CMAKE_ARGS="-DGGML_NATIVE=OFF ${CUDA:+-DGGML_CUDA=on}" \
    /opt/dg-lsp/bin/pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY dg_lsp dg_lsp
RUN /opt/dg-lsp/bin/pip install --no-cache-dir --no-deps .

FROM ${BASE:-ubuntu:24.04}
RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 && rm -rf /var/lib/apt/lists/* && \
    useradd --system --uid 10001 --create-home --home-dir /data dg-lsp
COPY --from=build /opt/dg-lsp /opt/dg-lsp
USER dg-lsp
WORKDIR /data
ENV DG_LSP_DATA_DIR=/data PATH=/opt/dg-lsp/bin:$PATH
EXPOSE 8012
# beyond loopback a key is required: without DG_LSP_API_KEY the container ends with one line that names it
ENTRYPOINT ["dg-lsp", "serve", "--host", "0.0.0.0"]
