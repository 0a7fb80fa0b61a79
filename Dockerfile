# Two images from one file, for amd64 and arm64:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --target agent .
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --target controller .
#
# The agent's has no web framework. The controller's, the default, can run every command of the chart. Nothing in them is
# compiled for one machine: wheels are taken for the platform that is built for, each by its hash.

# By digest, so that two builds have the same Debian and Python (CONTRIBUTING.md says how to take a newer one).
ARG BASE=docker.io/library/python:3.12-slim-bookworm@sha256:0f5b26b9518d002b6173fd61daad821fa340635ebfec5bba471013f9ca114579
FROM ${BASE} AS tools
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY packaging/locks packaging/locks
RUN python -m venv /opt/tools && /opt/tools/bin/pip install --require-hashes --only-binary :all: -r packaging/locks/build.txt -r packaging/locks/tools.txt

FROM tools AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY exporter exporter
COPY scheduler_feedback scheduler_feedback
COPY dashboards dashboards
COPY gangwatch gangwatch
COPY examples/train_dp.py examples/train_dp.py
RUN /opt/tools/bin/python -m hatchling build -t wheel

# Each environment contains the list of its PyPI packages. For Debian's packages, use buildx with `--sbom=true`.
FROM tools AS agent-environment
RUN python -m venv --without-pip /opt/gangwatch && /opt/tools/bin/pip --python /opt/gangwatch/bin/python install --require-hashes --only-binary :all: -r packaging/locks/agent.txt
COPY pyproject.toml .
COPY --from=wheel /source/dist dist
RUN /opt/tools/bin/pip --python /opt/gangwatch/bin/python install --no-deps --no-index dist/*.whl
RUN mkdir -p /opt/gangwatch/share/sbom && /opt/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o /opt/gangwatch/share/sbom/gangwatch.cdx.json /opt/gangwatch/bin/python

FROM tools AS controller-environment
RUN python -m venv --without-pip /opt/gangwatch && /opt/tools/bin/pip --python /opt/gangwatch/bin/python install --require-hashes --only-binary :all: -r packaging/locks/controller.txt
COPY pyproject.toml .
COPY --from=wheel /source/dist dist
RUN /opt/tools/bin/pip --python /opt/gangwatch/bin/python install --no-deps --no-index dist/*.whl
RUN mkdir -p /opt/gangwatch/share/sbom && /opt/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o /opt/gangwatch/share/sbom/gangwatch.cdx.json /opt/gangwatch/bin/python

FROM ${BASE} AS runtime
# One arena: each thread's own would add a megabyte of fragments.
ENV PATH=/opt/gangwatch/bin:$PATH MALLOC_ARENA_MAX=1 PYTHONDONTWRITEBYTECODE=1 GANGWATCH_LOG_STDERR=1
# The controller runs as this user. The agent's pod asks for root, whose files it must read, and for none of root's rights.
USER 65532:65532
ENTRYPOINT ["gangwatch"]

FROM runtime AS agent
COPY --from=agent-environment /opt/gangwatch /opt/gangwatch
RUN python -c 'from gangwatch.extras import require; require("the image", "kubernetes", "remote-write")'

FROM runtime AS controller
COPY --from=controller-environment /opt/gangwatch /opt/gangwatch
# The chart's renewal of certificates runs openssl, which comes with the base image; where it does not, the build ends here.
RUN openssl version && python -c 'from gangwatch.extras import require; require("the image", "controller", "kubernetes", "devices", "oidc", "otlp", "otlp-grpc", "remote-write")'
