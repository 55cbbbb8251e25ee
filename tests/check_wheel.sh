#!/usr/bin/env bash
# Build the wheel, install it in a clean environment, and use it from a folder where the checkout cannot be seen.
# PYTHON names an interpreter that has the `build` package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

rm -rf build # what an earlier build left there would be packed again
"$python" -m build --wheel --outdir "$work/dist" .
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$work"/dist/*.whl
cp tests/smoke.py "$work/smoke.py"
mkdir "$work/elsewhere"
cd "$work/elsewhere"
"$work/venv/bin/python" "$work/smoke.py"
