# The command line of veilrec: trains, evaluates, recommends, audits, releases, serves.
#
#   docker build -t veilrec .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" -v veilrec-cache:/cache \
#     veilrec train fedmf --data csv:clicks.csv --out runs/first
#
#   docker run --rm -p 127.0.0.1:8337:8337 -v "$PWD:/work" veilrec serve releases/news --host 0.0.0.0 --insecure-plaintext
#
# /work is where files are read and written, so $PWD must be writable by the user that is given; without --user it is a
# user without rights (10001), who can write only where everybody may. It has the extras `train`, `report`,
# `release` and `serve`; others are added in the line with `pip install`.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
# Another place for packages, such as one with torch for processors alone, which is a tenth of the size:
#   --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
COPY hashes ./hashes
COPY tools ./tools
RUN python -m venv /opt/veilrec
# Every file is checked against its hash where hashes/ has this platform (linux/amd64, Python 3.11); torch is not.
RUN /opt/veilrec/bin/python tools/supply_chain.py install demo --no-cache-dir
RUN /opt/veilrec/bin/pip install --no-cache-dir --disable-pip-version-check $(/opt/veilrec/bin/python tools/supply_chain.py isolation) -c constraints.txt '.[train,report,release,serve]'

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 10001 veilrec && mkdir /work /cache && chown veilrec /work && chmod 1777 /work /cache
COPY --from=build /opt/veilrec /opt/veilrec
# Data sets and compiled kernels are kept in /cache: a volume there saves a minute of compiling per container.
ENV PATH=/opt/veilrec/bin:$PATH VEILREC_CACHE=/cache/veilrec NUMBA_CACHE_DIR=/cache/numba OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
USER veilrec
WORKDIR /work
VOLUME /cache
# Healthy: the command starts, and `doctor` finds nothing missing.
HEALTHCHECK --interval=5m --timeout=60s --start-period=30s CMD veilrec doctor --json | python -c "import json, sys; sys.exit(bool(json.load(sys.stdin)['problems']))"
ENTRYPOINT ["veilrec"]
CMD ["--help"]
