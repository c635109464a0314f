# The server, and with `--target runner` the runner of pipelines.
#
#     docker build -t topics .
#     docker run --read-only -p 127.0.0.1:4000:4000 -v topics:/var/lib/topics -e TOPICS_API_KEYS=a-secret topics
#
# Nothing is written but /var/lib/topics. SIGTERM drains and writes a last checkpoint: give it a minute (--stop-timeout 60).

ARG PYTHON=3.13

# --- build: the compiler stays here ---
FROM python:${PYTHON}-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/topics
WORKDIR /src
# Dependencies first: they change less often than the sources.
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY tools/requirements.py tools/requirements.py
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt
RUN /opt/topics/bin/python tools/requirements.py | /opt/topics/bin/pip install --quiet --requirement /dev/stdin
COPY tools tools
COPY src src
# TOPICS_PURE=1 compiles nothing: a minute less to build, and a slower server. With 0, what prevents compiling ends the build.
ARG TOPICS_PURE=0
RUN TOPICS_PURE=${TOPICS_PURE} /opt/topics/bin/pip install --quiet .

FROM build AS build-runner
RUN /opt/topics/bin/python tools/requirements.py spark | /opt/topics/bin/pip install --quiet --requirement /dev/stdin

# --- what both images have: Python, a user, a directory for data ---
FROM python:${PYTHON}-slim AS base
RUN groupadd --gid 10001 topics && useradd --uid 10001 --gid topics --no-create-home --home-dir /var/lib/topics topics \
    && install --directory --owner topics --group topics --mode 0700 /var/lib/topics
ENV PATH=/opt/topics/bin:$PATH PYTHONDONTWRITEBYTECODE=1 TOPICS_LOG_FORMAT=json
USER 10001:10001
WORKDIR /var/lib/topics
VOLUME /var/lib/topics
STOPSIGNAL SIGTERM
ENTRYPOINT ["topics"]

# --- the runner of pipelines: with Spark and a Java runtime ---
FROM base AS runner
COPY --from=build-runner /opt/topics /opt/topics
CMD ["pipelines", "run", "--state", "/var/lib/topics/state", "--tables", "/var/lib/topics/tables"]

# --- the server ---
FROM base AS server
COPY --from=build /opt/topics /opt/topics
# Beyond loopback the server does not start without keys: TOPICS_API_KEYS.
ENV TOPICS_HOST=0.0.0.0 TOPICS_PORT=4000 TOPICS_DATA_DIR=/var/lib/topics
EXPOSE 4000
COPY deploy/healthcheck.py /opt/topics/healthcheck.py
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 CMD ["python3", "/opt/topics/healthcheck.py"]
CMD ["serve"]
