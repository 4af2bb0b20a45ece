#!/bin/sh
# A SuperNode's key pair (NIST P-384). The private key stays on the device; the public key is enrolled.
# Usage: node-key.sh FILE   writes FILE and FILE.pub
set -eu
umask 077
if [ -e "$1" ]; then
    echo "$1 exists; a new key would be another node" >&2
    exit 1
fi
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$1"
chmod 644 "$1.pub"
echo "on the server: murmur enrol $1.pub --clients IDS --table enrolled.txt --superlink NAME"
