# parallel: processes by fork for each turn (mclapply), and a cluster of two that lasts (sockets). One line per turn.
library(parallel)
turns <- as.integer(c(commandArgs(TRUE), "60")[1])
workers <- makePSOCKcluster(2)
invisible(clusterEvalQ(workers, { total <- 0; add <- function(x) { total <<- total + x; total } }))
for (turn in seq_len(turns)) {
  pieces <- mclapply(1:6, function(i) { Sys.sleep(0.005); sum(((1:20000) * i * turn) %% 101) }, mc.cores = 3)
  totals <- unlist(clusterCall(workers, function(x) add(x), turn))
  squares <- unlist(parLapply(workers, 1:10, function(x) x * x))
  cat(turn, format(sum(unlist(pieces)), digits = 15), totals, sum(squares), "\n")
}
stopCluster(workers)
cat("PASS\n")
