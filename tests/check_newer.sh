#!/usr/bin/env bash
# Run the core suite on each newer Python of this machine, in an environment of its own (.venv-3.12 and so on).
# Arguments: those of pytest. A Python that the machine lacks is named, and one that fails ends the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

interpreter() { # the first working interpreter of a version: on the path, or one that pyenv installed
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

for version in 3.12 3.13 3.14; do
  python=$(interpreter "$version")
  if [ -z "$python" ]; then
    echo "Not tested: this machine has no Python $version" >&2
    continue
  fi
  environment=.venv-$version
  if [ ! -e "$environment/.installed" ] || [ pyproject.toml -nt "$environment/.installed" ]; then
    "$python" -m venv --clear "$environment"
    "$environment/bin/python" -m pip install --quiet --editable '.[lowest]'
    touch "$environment/.installed"
  fi
  echo "Python $version"
  "$environment/bin/python" -m pytest "$@"
done
