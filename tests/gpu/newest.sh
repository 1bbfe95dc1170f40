#!/usr/bin/env bash
# newest.sh PARTS KIT OUT [SECONDS]: deep mode and pinned memory under another release of PyTorch than the one installed.
#
# PARTS holds that release, packed, in a folder named after it; KIT holds `unpack.sh`, which lays it out, and `pytorch/`,
# PyTorch's own tests of its allocator with their runner. The library for deep mode is compiled, unless
# `src/allotment/torch/_deep/compiled` has it, which the stage `first` needs.
#
# The stages run in order of importance. One that would not end within SECONDS (540) of the start is left out; call it
# again with the same arguments to run those that are left. Results are kept beside the unpacked release, and after each
# stage OUT has all of them so far, with a page of them, `page.md`. RELEASE_STAGES names the stages to run, also again.
# `trees` needs Triton, in PARTS, or beside them as triton.part.0 and so on.
set -uo pipefail
parts=$(realpath "$1") kit=$(realpath "$2") limit=${4:-540}
mkdir -p "$3"; out=$(realpath "$3")
here=$(cd "$(dirname "$0")/../.." && pwd)
target=${RELEASE_TARGET:-/tmp/allotment-release/$(basename "$parts")}
results=$target-results
most=${RELEASE_MOST:-330}  # seconds for one run of PyTorch's own tests
stages=${RELEASE_STAGES:-first tests programs pinned unknown trees speed training loaders expandable}
declare -A needs=([first]=50 [tests]=250 [programs]=60 [pinned]=130 [unknown]=60 [trees]=280 [speed]=70 [training]=90 [loaders]=80 [expandable]=250)
only='memory|alloc|mempool|MemPool|pool|graph|snapshot|oom|expandable|pinned|caching|history|trace|checkpoint|Block|cudart|stream|event|garbage|record'
export PYTHONUNBUFFERED=1 PYTHONPATH=$here/src${PYTHONPATH:+:$PYTHONPATH}

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
left() { echo $((limit - SECONDS)); }

# --- the stages ---

run_first() {  # what a user without a compiler gets, if the package has the library for this release
  local cache way
  cache=$(mktemp -d)
  for way in '' '' '-m allotment.torch --mode deep' '-m allotment.torch' '-m allotment.torch'; do
    # shellcheck disable=SC2086
    CXX=/nowhere CUDA_HOME=/nowhere XDG_CACHE_HOME=$cache timeout 60 "$python" $way tests/gpu/programs/first_tensor.py "python $way" 2>&1 ||
      echo "python $way: ended with $?"
  done
}

tests_as() {  # MODE NAME BUDGET EXTRA...: PyTorch's own tests, natively or in deep mode
  local mode=$1 name=$2 budget=$3 work; shift 3
  work=$target-tests-$mode-$name
  mkdir -p "$work/home/.cache"  # with the library that is compiled already
  cp -a "${XDG_CACHE_HOME:-$HOME/.cache}/allotment" "$work/home/.cache/" 2>/dev/null || true
  (cd "$kit/pytorch" && PYTHONPATH='' python3 run.py "$mode" --python "$python" --allotment "$here/src" \
    --jobs 7 --budget "$budget" --collect-again --out "$results" --work "$work" --name "$name" "$@" 2>&1 | sed -u "s/^/$mode $name: /")
}
own_tests() {  # NAME BUDGET EXTRA...: natively and in deep mode, at the same time
  tests_as native "$@" & tests_as deep "$@" & wait
}
of_memory=(--whole test/test_cuda.py --only "$only")
budget() { local seconds=$(($(left) - ${1:-15})); echo $((seconds > most ? most : seconds)); }

run_tests() { own_tests default "$(budget)" "${of_memory[@]}"; }
run_expandable() { own_tests expandable "$(budget)" --settings expandable_segments:True "${of_memory[@]}"; }
run_trees() { own_tests trees "$(budget)" --groups trees; }

run_programs() {  # sixteen drawn programs at the same time
  local seed settings
  for settings in '' expandable_segments:True; do
    for seed in 1 2 3 4 5 6 7 8; do
      timeout 150 "$python" tests/gpu/deep_programs.py --programs 1 --seed $seed --settings "$settings" 2>&1 | sed -u "s/^/${settings:-plain}: /" &
    done
  done
  wait
}

run_pinned() {
  local seed kind pinned=(--whole test/test_cuda.py --only pin)
  for seed in 1 2 3 4; do
    for kind in torch tight; do
      timeout 60 "$python" tests/gpu/pinned_programs.py --programs 1 --seed $seed --kind $kind 2>&1 | sed -u "s/^/$kind: /" &
    done
  done
  wait
  tests_as native pinned-torch 70 "${pinned[@]}" &
  for kind in torch tight; do
    tests_as deep pinned-$kind 70 --install "{\"mode\": \"deep\", \"pinned\": \"$kind\"}" "${pinned[@]}" &
  done
  wait
  cp "$results/result.native.pinned-torch.json" "$results/result.native.pinned-tight.json"
  timeout 60 "$python" tests/gpu/programs/pinned_history.py "$results/pinned.pickle"
  python3 -m allotment explain "$results/pinned.pickle"
  python3 -m allotment view "$results/pinned.pickle" --html "$results/pinned.html"
}

run_unknown() { timeout 150 "$python" tests/gpu/made_up_release.py 2>&1; }
run_speed() { timeout 150 "$python" benchmarks/gpu/torch_speed.py --rounds 15 --out "$results/speed.json" 2>&1; }
run_training() { timeout 200 "$python" benchmarks/gpu/gpt2_training.py --settings default --rounds 2 --out "$results/training.json" 2>&1; }
run_loaders() { timeout 150 python3 benchmarks/gpu/pinned_loaders.py --rounds 1 --python "$python" --out "$results/loaders.json" 2>&1; }

# --- all of them ---

show() { python3 "$here/tests/gpu/newest_page.py" "$results" >"$results/page.md"; cp -r "$results/." "$out/"; }
run_stage() {
  local stage=$1
  [[ -e $results/$stage.txt && -z ${RELEASE_STAGES:-} ]] && return
  if [[ $stage == trees && ! -e $target/triton ]]; then say "trees: left out, Triton is not there"; return; fi
  if (($(left) < needs[$stage])); then
    say "$stage: left for another call, ${needs[$stage]} s are needed and $(left) are left"; return
  fi
  say "$stage begins"
  "run_$stage" 2>&1 | tee "$results/$stage.part"
  mv "$results/$stage.part" "$results/$stage.txt"
  show
}

mkdir -p "$results"
(cd "$here" && flock /tmp/allotment-build.lock python3 setup.py --quiet build_ext --inplace >/tmp/allotment-build.txt 2>&1) & building=$!
if [[ ! -x $target/python ]]; then bash "$kit/unpack.sh" "$parts" "$target" || exit 1; fi
if [[ -e $parts/triton.part.0 && ! -e $target/triton ]]; then cat "$parts"/triton.part.? | xz -d | tar x -C "$target" || exit 1; fi
wait $building || { tail -20 /tmp/allotment-build.txt; exit 1; }
say "unpacked and built"
python=$target/python
cd "$here" || exit 1
"$python" -c 'import allotment.torch as a; a.install("deep"); import torch; print(torch.__version__, a.installed_mode(), torch.empty(3, device="cuda").shape)' || exit 1
say "deep mode works"
for stage in $stages; do run_stage "$stage"; done
show
cat "$results/page.md"
say "done"
