#!/bin/sh
# An environment of its own for pfl, whose requirements exclude ours: `make bench-pfl`.
# NumPy and PyTorch are taken from the project's environment, so that both sides run the same build.
set -eu
unset PYTHONPATH
python=$1 folder=$2
"$python" -m venv "$folder"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/murmur.pth"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check 'pfl==0.6.0'
"$folder/bin/python" -c 'import pfl, torch; print("pfl with torch", torch.__version__)'
touch "$folder/ready"
