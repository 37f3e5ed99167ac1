#!/usr/bin/env bash
# Validation AUC and log loss of the Criteo experiments over seeds: tools/criteo_seeds.sh TRAIN VALID [seeds] [experiments]
set -euo pipefail
train=$1 valid=$2 seeds=${3:-0 1 2} experiments=${4:-criteo_dlrm criteo_dcn_v2 criteo_deepfm criteo_wide_deep}
for experiment in $experiments; do
  for seed in $seeds; do
    folder=runs/seeds/$experiment-$seed
    recpipe train experiment="$experiment" data.path="$train" data.valid_path="$valid" seed="$seed" \
      run.dir="$folder" run.overwrite=true log.progress=none save_checkpoint=false >/dev/null
    python3 -c "import json; s = json.load(open('$folder/summary.json')); \
print('$experiment', 'seed', $seed, 'auc', round(s['auc'], 4), 'logloss', round(s['logloss'], 4), 'step', s['best_step'])"
  done
done
