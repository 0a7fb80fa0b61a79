#!/bin/sh
# Makes an environment with PyTorch for CPUs, once per machine: FSDP2, pipelines and torch.compile over gloo.
#   packaging/torch.sh PYTHON
# Output folder: GANGWATCH_TORCH if set, else ${XDG_CACHE_HOME:-~/.cache}/gangwatch/torch. Download 570 MB, on disk 1.2 GB.
#
# For x86_64, PyPI has only the build with CUDA, whose dependencies are 3 GB of CUDA libraries. Its CPU part needs two of
# them (12 MB). The loader asks for the others as well, so this script compiles one small library that defines their
# functions: each prints a message and aborts. Without a GPU, PyTorch calls none of them. The wheel itself is unchanged.
set -eu
version=2.15.0
environment=${GANGWATCH_TORCH:-${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/torch}
[ "$(cat "$environment/.complete" 2>/dev/null)" = "$version" ] && "$environment/bin/python" -c '' 2>/dev/null && exit 0
for program in gcc g++ nm readelf; do
    command -v "$program" >/dev/null || { echo "packaging/torch.sh: $program is missing: apt-get install g++ binutils" >&2; exit 1; }
done
echo "installing PyTorch $version (once per machine; downloads 570 MB)" >&2
rm -rf "$environment"
mkdir -p "$(dirname "$environment")"
"$(dirname "$0")/environment.sh" "$1" "$environment"
install="$environment/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --only-binary :all:"
$install numpy==2.4.6 filelock==4.2.12 fsspec==2026.9.0 jinja2==3.1.6 networkx==3.6.1 'setuptools>=77.0.3,<82' sympy==1.14.0 typing-extensions==4.16.0
$install --no-deps "torch==$version"
libraries=$(echo "$environment"/lib/python3*/site-packages/torch/lib)
if [ -e "$libraries/libtorch_cuda.so" ]; then
    $install --no-deps nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86
    prefixes='^(cublas|cudnn|cufft|cusparse|cusolver|cuFile|nccl|nvshmem|nvrtc|nvJitLink)'
    absent='^lib(cublas|cublasLt|cudnn|cufft|cusparse|cusparseLt|cusolver|cufile|nccl|nvshmem_host|nvrtc|nvJitLink)\.so'
    {
        echo '#include <stdio.h>'
        echo '#include <stdlib.h>'
        echo 'void absent(void) { puts("torch: this environment has no CUDA libraries (packaging/torch.sh)"); abort(); }'
        nm -D --undefined-only "$libraries"/lib*.so | awk '{print $2}' | sed 's/@.*//' | grep -E "$prefixes" | sort -u |
            sed 's/.*/void &(void) __attribute__((alias("absent")));/'
    } >"$environment/absent.c"
    gcc -w -shared -fPIC -o "$libraries/libabsent_cuda.so" "$environment/absent.c"
    for library in "$libraries"/lib*.so; do
        readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'
    done | grep -E "$absent" | sort -u | while read -r name; do ln -sf libabsent_cuda.so "$libraries/$name"; done
fi
"$environment/bin/python" -c 'import torch, torch.distributed as d; from torch.distributed.fsdp import fully_shard; assert d.is_gloo_available()'
echo "$version" >"$environment/.complete"
