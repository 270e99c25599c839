cd /work/wC; export CARGO_INCREMENTAL=1
nice -n 5 make build 2>&1 | grep -E "^(error|warning)|Finished" 
nice -n 5 cargo test --release --locked --no-run --workspace --test e2e 2>&1 | grep -E "^(error|warning)|Finished"
