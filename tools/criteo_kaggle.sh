#!/usr/bin/env bash
# From Criteo Kaggle's train.txt (plain, .gz, .zst) to the printed AUC. Each step is skipped or resumed when it was begun.
#   tools/criteo_kaggle.sh train.txt prepared_dir [overrides of recpipe train]
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 train.txt[.gz|.zst] prepared_dir [overrides of recpipe train]" >&2
    exit 2
fi
source=$1 prepared=$2
shift 2
echo "1/3 prepare $source"
recpipe data prepare "source=$source" "out=$prepared" data.frequency_threshold=10
echo "2/3 verify $prepared"
recpipe data verify "$prepared"
echo "3/3 train"
recpipe train data=prepared "data.path=$prepared" "$@"
