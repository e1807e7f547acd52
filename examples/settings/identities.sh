#!/bin/sh
# Makes what `tenure serve scheduler` and the kube-scheduler that asks it need on one machine, in the folder FOLDER:
# a certificate that each shows the other, two signer keys, and a kubeconfig for each. Usage: sh identities.sh FOLDER
set -e
mkdir -p "$1"
curve="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
openssl req -x509 $curve -subj /CN=tenure -addext keyUsage=critical,keyCertSign \
  -keyout "$1/ca.key" -out "$1/ca.crt" 2>"$1/openssl.log"
openssl req -x509 $curve -CA "$1/ca.crt" -CAkey "$1/ca.key" -subj /CN=system:kube-scheduler \
  -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1 \
  -addext extendedKeyUsage=serverAuth,clientAuth -keyout "$1/tls.key" -out "$1/tls.crt" 2>>"$1/openssl.log"
tenure ledger key new --name proof --out "$1/proof.key" >"$1/proof.vkey"
tenure ledger key new --name ledger --out "$1/ledger.key" >"$1/ledger.vkey"
kubectl config view --raw --minify --flatten >"$1/kubeconfig"
cp "$1/kubeconfig" "$1/scheduler.kubeconfig"
token=$(kubectl create token tenure-scheduler --namespace tenure-system --duration 24h)
kubectl config set-credentials tenure-scheduler --token="$token" --kubeconfig "$1/scheduler.kubeconfig"
kubectl config set-context --current --user=tenure-scheduler --kubeconfig "$1/scheduler.kubeconfig"
