#!/bin/sh
# Makes an environment with training frameworks for CPUs, once per machine: the Hugging Face Trainer, PyTorch Lightning
# and DeepSpeed, on the PyTorch of packaging/torch.sh.
#   packaging/frameworks.sh PYTHON
# Output folder: GANGWATCH_FRAMEWORKS if set, else ${XDG_CACHE_HOME:-~/.cache}/gangwatch/frameworks. Download 30 MB, on
# disk 240 MB.
#
# DeepSpeed has a folder of its own, $environment/deepspeed: transformers imports it wherever it finds it.
set -eu
version='transformers 5.24.0, pytorch-lightning 2.6.6, deepspeed 0.19.8'
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch
environment=${GANGWATCH_FRAMEWORKS:-$cache/frameworks}
torch=${GANGWATCH_TORCH:-$cache/torch}
[ "$(cat "$environment/.complete" 2>/dev/null)" = "$version" ] && "$environment/bin/python" -c '' 2>/dev/null && exit 0
echo "installing $version (once per machine; downloads 30 MB)" >&2
rm -rf "$environment"
mkdir -p "$(dirname "$environment")"
"$(dirname "$0")/environment.sh" "$1" "$environment"
packages=$(echo "$environment"/lib/python3*/site-packages)
echo "$torch"/lib/python3*/site-packages >"$packages/torch.pth"
install="$environment/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps"
# Without dependencies: PyPI's torch would bring 3 GB of CUDA libraries. These are the modules that the programs import.
$install --only-binary :all: \
    transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 huggingface-hub==2.4.0 accelerate==1.15.0 \
    pytorch-lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 \
    anyio==4.16.0 click==8.5.1 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 idna==3.20 packaging==26.4 psutil==7.2.2 \
    pyyaml==6.0.4 regex==2026.11.19 tqdm==4.70.1 truststore==0.10.5 \
    pydantic==2.14.4 pydantic-core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 \
    'setuptools>=77.0.3,<82' einops==0.8.2 hjson==3.1.0 msgpack==1.2.4 ninja==1.13.2 py-cpuinfo==9.0.0
DS_BUILD_OPS=0 $install --no-build-isolation --target "$environment/deepspeed" deepspeed==0.19.8
HF_HUB_OFFLINE=1 "$environment/bin/python" -c 'from transformers import Trainer; import pytorch_lightning'
PYTHONPATH=$environment/deepspeed "$environment/bin/python" -c 'import deepspeed'
echo "$version" >"$environment/.complete"
