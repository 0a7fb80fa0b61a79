# The suite's image, for amd64 and arm64: docker buildx build --platform linux/amd64,linux/arm64 .
# Nothing in it is compiled for one machine: wheels are taken for the platform that is built for.
FROM docker.io/library/python:3.12-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/gangwatch
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY exporter exporter
COPY scheduler_feedback scheduler_feedback
COPY dashboards dashboards
COPY gangwatch gangwatch
COPY examples/train_dp.py examples/train_dp.py
RUN /opt/gangwatch/bin/pip install --no-cache-dir --disable-pip-version-check '.[remote-write,oidc]'

FROM docker.io/library/python:3.12-slim-bookworm
# One arena: each thread's own would add a megabyte of fragments.
ENV PATH=/opt/gangwatch/bin:$PATH MALLOC_ARENA_MAX=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/gangwatch /opt/gangwatch
# Certificates are renewed by openssl, which comes with the base image; where it does not, the build ends here.
RUN openssl version && gangwatch --version
# The controller runs as this user. The agent's pod asks for root, whose files it must read, and for none of root's rights.
USER 65532:65532
ENTRYPOINT ["gangwatch"]
