# The gateway with its own engine, on CPU. For CUDA, build with the default index of torch:
#   docker build --build-arg TORCH_INDEX=https://pypi.org/simple .
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /srv/draftgate
RUN useradd --create-home draftgate && mkdir /data && chown draftgate /data
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY decoders decoders
COPY policies policies
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" .
USER draftgate
ENV DRAFTGATE_HOST=0.0.0.0 \
    DRAFTGATE_CACHE=/data/cache \
    HF_HOME=/data/hub \
    DRAFTGATE_DATABASE_URL=sqlite:////data/decisions.db
VOLUME /data
EXPOSE 8080
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz')"]
CMD ["draftgate", "serve"]
