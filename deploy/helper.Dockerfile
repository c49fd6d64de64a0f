# A helper of secure aggregation: the small core of veilrec, and one command.
#
#   docker build -t veilrec-helper -f deploy/helper.Dockerfile .
#   docker run -d --restart on-failure --read-only --cap-drop ALL --user "$(id -u):$(id -g)" -v "$PWD:/helper" veilrec-helper
#
# /helper has federation.yaml and ca.pem of the federation, and the folder that was handed over, as `helper`. It has to
# be a real disk: what was answered is written there before it is answered. It listens at no port.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/veilrec
RUN /opt/veilrec/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 10001 veilrec && mkdir /helper && chown veilrec /helper
COPY --from=build /opt/veilrec /opt/veilrec
ENV PATH=/opt/veilrec/bin:$PATH OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
USER veilrec
WORKDIR /helper
VOLUME /helper
ENTRYPOINT ["veilrec", "federate", "helper", "helper", "--federation", "."]
