#!/usr/bin/env bash
# newest.sh PARTS KIT OUT [SECONDS]: deep mode under another release of PyTorch than the one installed, on a GPU.
#
# PARTS holds that release, packed; KIT holds `unpack.sh`, which lays it out, and `pytorch/`, PyTorch's own tests of its
# allocator with their runner. Deep mode is compiled, unless `src/allotment/torch/_deep/compiled` has the library.
# Results go to OUT, and every stage prints as it goes. A stage that would not end within SECONDS (540) of the start is
# left out, and a line says so. RELEASE_STAGES names the stages to run. Two run only if they are named: `pinned` compares
# pinned memory, and `trees` compiles much; it needs Triton, in PARTS, or beside them as triton.part.0 and so on.
set -uo pipefail
mkdir -p "$3"
parts=$(realpath "$1") kit=$(realpath "$2") out=$(realpath "$3") limit=${4:-540}
stages=${RELEASE_STAGES:-first tests programs speed training expandable}
here=$(cd "$(dirname "$0")/../.." && pwd)
target=${RELEASE_TARGET:-/tmp/allotment-release}
only='memory|alloc|mempool|MemPool|pool|graph|snapshot|oom|expandable|pinned|caching|history|trace|checkpoint|Block|cudart|stream|event|garbage|record'
export PYTHONUNBUFFERED=1

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
wanted() {  # NAME SECONDS: whether a stage is asked for, and time for it is left
  [[ " $stages " == *" $1 "* ]] || return 1
  if ((SECONDS + $2 > limit)); then say "$1: left out, $2 s are needed and $((limit - SECONDS)) are left"; return 1; fi
  say "$1 begins"
}

(cd "$here" && flock /tmp/allotment-build.lock python3 setup.py --quiet build_ext --inplace >/tmp/allotment-build.txt 2>&1) & building=$!
if [[ ! -x $target/python ]]; then bash "$kit/unpack.sh" "$parts" "$target" || exit 1; fi
if [[ -e $parts/triton.part.0 && ! -e $target/triton ]]; then cat "$parts"/triton.part.? | xz -d | tar x -C "$target" || exit 1; fi
wait $building || { tail -20 /tmp/allotment-build.txt; exit 1; }
say "unpacked and built"
python=$target/python
export PYTHONPATH=$here/src${PYTHONPATH:+:$PYTHONPATH}
cd "$here" || exit 1
"$python" -c 'import allotment.torch as a; a.install("deep"); import torch; print(torch.__version__, a.installed_mode(), torch.ones(3, device="cuda").sum().item())' || exit 1
say "deep mode works"

if wanted first 40; then  # what a user without a compiler gets, if the package has the library for this release
  for mode in deep auto; do
    CXX=/nowhere XDG_CACHE_HOME=$(mktemp -d) "$python" - $mode <<'P'
import sys, time
import torch
torch.cuda.init()  # starting the driver is not our time
began = time.perf_counter()
import allotment.torch
allotment.torch.install(sys.argv[1])
torch.empty(1000, device="cuda")
print(f"{sys.argv[1]}: {allotment.torch.installed_mode()}, {time.perf_counter() - began:.2f} s to the first tensor, no compiler")
P
  done
fi

tests_as() {  # MODE NAME BUDGET EXTRA...: PyTorch's own tests, natively or in deep mode
  local mode=$1 name=$2 budget=$3; shift 3
  mkdir -p "/tmp/allotment-tests-$mode-$name/home/.cache"  # with the library that is compiled already
  cp -a "${XDG_CACHE_HOME:-$HOME/.cache}/allotment" "/tmp/allotment-tests-$mode-$name/home/.cache/" 2>/dev/null || true
  (cd "$kit/pytorch" && PYTHONPATH='' python3 run.py "$mode" --python "$python" \
    --allotment "$here/src" --jobs 7 --budget "$budget" --collect-again --out "$out" --work "/tmp/allotment-tests-$mode-$name" "$@" \
    2>&1 | sed -u "s/^/$mode $name: /")
}
table() {
  (cd "$kit/pytorch" && python3 run.py table "$out") | grep -E '^## |^- |of those|^\| (pass|fail|crash|skip|timeout|not run)|\*\*(FAIL|CRASH|TIMEOUT)'
}
own_tests() {  # NAME BUDGET EXTRA...: natively and in deep mode, at the same time
  tests_as native "$@" & tests_as deep "$@" & wait
  table
}

of_memory=(--whole test/test_cuda.py --only "$only")
if wanted tests 250; then own_tests default $((limit - SECONDS - 60 > 330 ? 330 : limit - SECONDS - 60)) "${of_memory[@]}"; fi

programs() {  # NAME SETTINGS: eight drawn programs at the same time
  local seed
  for seed in 1 2 3 4 5 6 7 8; do
    "$python" tests/gpu/deep_programs.py --programs 1 --seed $seed --settings "$2" 2>&1 | sed -u "s/^/$1: /" &
  done
  wait
}

if wanted programs 60; then
  programs plain '' & programs expandable expandable_segments:True & wait
fi
if wanted speed 60; then
  timeout 120 "$python" benchmarks/gpu/torch_speed.py --rounds 15 --out "$out/speed.json" 2>&1
fi
if wanted training 60; then
  timeout 150 "$python" benchmarks/gpu/gpt2_training.py --settings default --rounds 2 --out "$out/training.json" 2>&1
fi
own_tests_of_pinned_memory() {  # BUDGET: natively, and on ours in each kind
  local kind pinned=(--whole test/test_cuda.py --only pin)
  tests_as native pinned-torch "$1" --name pinned-torch "${pinned[@]}" &
  for kind in torch tight; do
    tests_as deep pinned-$kind "$1" --name pinned-$kind --install "{\"mode\": \"deep\", \"pinned\": \"$kind\"}" "${pinned[@]}" &
  done
  wait
  cp "$out/result.native.pinned-torch.json" "$out/result.native.pinned-tight.json"
  table
}
if wanted pinned 150; then
  for seed in 1 2 3 4; do
    "$python" tests/gpu/pinned_programs.py --programs 1 --seed $seed 2>&1 | sed -u "s/^/torch: /" &
    "$python" tests/gpu/pinned_programs.py --programs 1 --seed $seed --kind tight 2>&1 | sed -u "s/^/tight: /" &
  done
  wait
  own_tests_of_pinned_memory 90
  "$python" - "$out/pinned.pickle" <<'P'
import sys
import allotment.torch
allotment.torch.install("deep", pinned="torch")
import torch
from torch.utils.data import DataLoader, TensorDataset
memory = torch.cuda.memory
memory._record_memory_history(stacks="python", **({"record_pinned_host_memory": True} if hasattr(memory, "_annotate_tensor") else {}))
for batch, in DataLoader(TensorDataset(torch.arange(1 << 20).float().reshape(1024, 1024)), batch_size=100, pin_memory=True):
    on_device = batch.to("cuda", non_blocking=True)
memory._dump_snapshot(sys.argv[1])
P
  python3 -m allotment explain "$out/pinned.pickle" | head -40
  timeout $((limit - SECONDS > 60 ? limit - SECONDS : 60)) python3 benchmarks/gpu/pinned_loaders.py --rounds 1 --python "$python" --out "$out/loaders.json"
fi
if wanted expandable 250; then own_tests expandable $((limit - SECONDS)) --expandable "${of_memory[@]}"; fi
if wanted trees 300; then own_tests trees $((limit - SECONDS)) --groups trees --name trees; fi
say "done"
