# afaf serve as an ordinary user; everything but the model's folder is read-only:
#
#     docker build -t afaf .
#     docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges --tmpfs /tmp \
#         -p 127.0.0.1:8000:8000 -e AFAF_TOKEN=... -v afaf-model:/model afaf
#
# Then open http://127.0.0.1:8000/ and type the token. Under another name than localhost: append --allow-host NAME.
FROM python:3.11-slim AS build
COPY pyproject.toml constraints.txt README.md LICENSE /source/
COPY src /source/src
RUN python -m venv /afaf \
 && /afaf/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
        "torch==$(sed -n 's/^torch==//p' /source/constraints.txt)" \
 && /afaf/bin/pip install --no-cache-dir -c /source/constraints.txt "/source[serve,photos,onnx,heic]"

FROM python:3.11-slim
COPY --from=build /afaf /afaf
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin afaf && install -d -o afaf -g afaf /model
USER afaf
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
VOLUME /model
EXPOSE 8000
HEALTHCHECK CMD ["/afaf/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["/afaf/bin/afaf", "serve", "/model/model.safetensors", "--host", "0.0.0.0"]
