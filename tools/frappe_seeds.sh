#!/usr/bin/env bash
# Test AUC and log loss of the Frappe experiments over seeds: tools/frappe_seeds.sh DIR_WITH_train_valid_test.csv[.gz] [seeds] [experiments]
set -euo pipefail
folder=$1 seeds=${2:-0 1 2} experiments=${3:-frappe_dlrm frappe_dcn_v2}
for split in train valid test; do
  [ -f "$folder/$split.csv" ] && files+=("$folder/$split.csv") || files+=("$folder/$split.csv.gz")
done
for experiment in $experiments; do
  for seed in $seeds; do
    run=runs/seeds/$experiment-$seed
    recpipe train experiment="$experiment" data.path="${files[0]}" data.valid_path="${files[1]}" data.test_path="${files[2]}" \
      seed="$seed" run.dir="$run" run.overwrite=true log.progress=none save_checkpoint=false >/dev/null
    python3 -c "import json; s = json.load(open('$run/summary.json')); v = s['valid']; \
print('$experiment seed $seed test auc', round(s['auc'], 4), 'logloss', round(s['logloss'], 4), \
'valid auc', round(v['auc'], 4), 'step', s['best_step'])"
  done
done
