#!/bin/bash
# run test parts in parallel
export PYTHONPATH=src
out=$1
parts=("tests/core --ignore=tests/core/test_faults.py --ignore=tests/core/test_state_machine.py --ignore=tests/core/placement" "tests/core/test_faults.py" "tests/core/test_state_machine.py" "tests/core/placement" "tests/allocators/caching tests/allocators/pluggable" "tests/allocators/host_cache tests/allocators/stream_ordered" "tests/adapters tests/settings" "tests/devices" "tests/formats" "tests/lab" "tests/stress" "$(ls tests/test_*.py tests/allocators/test_*.py | tr '\n' ' ')")
i=0
for p in "${parts[@]}"; do
  (timeout 400 python3 -m pytest -q -p no:cacheprovider -m "not gpu" $p > $out/part$i.log 2>&1; echo "part$i rc=$? $p: $(tail -1 $out/part$i.log)") &
  i=$((i+1))
done
wait
