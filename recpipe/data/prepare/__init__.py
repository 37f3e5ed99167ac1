"""From text or Parquet files to a directory of memory-mappable shards with a manifest.

Four phases, each resumable: parse (one Arrow file a chunk of input), assign (which row goes to which split), count (one
vocabulary a feature, on training rows), encode (one set of output files a shard).
"""
