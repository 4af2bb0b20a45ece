#!/bin/sh
# A certificate authority of your own, and a certificate for the SuperLink signed by it.
# Usage: certificates.sh FOLDER HOST [DAYS]   HOST: the name or the address that devices will use
set -eu
folder=$1 host=$2 days=${3:-365}
umask 077
mkdir -p "$folder"
case $host in
    *[!0-9.]*) names="DNS:$host,DNS:localhost,IP:127.0.0.1" ;;
    *) names="IP:$host,DNS:localhost,IP:127.0.0.1" ;;
esac
if [ ! -e "$folder/ca.key" ]; then
    openssl ecparam -name prime256v1 -genkey -noout -out "$folder/ca.key"
    openssl req -x509 -new -sha256 -days 3650 -key "$folder/ca.key" -subj "/CN=Murmur federation" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign \
        -out "$folder/ca.pem"
fi
openssl ecparam -name prime256v1 -genkey -noout -out "$folder/server.key"
openssl req -new -sha256 -key "$folder/server.key" -subj "/CN=$host" -out "$folder/server.csr"
printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth\nsubjectAltName=%s\n' \
    "$names" >"$folder/server.ext"
openssl x509 -req -sha256 -days "$days" -in "$folder/server.csr" -CA "$folder/ca.pem" \
    -CAkey "$folder/ca.key" -CAcreateserial -extfile "$folder/server.ext" -out "$folder/server.pem"
rm "$folder/server.csr" "$folder/server.ext"
chmod 644 "$folder/ca.pem" "$folder/server.pem"
echo "devices need $folder/ca.pem; the SuperLink needs ca.pem, server.pem and server.key"
echo "keep $folder/ca.key offline: whoever has it can pose as the SuperLink"
