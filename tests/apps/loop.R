# Matrices, random numbers, data frames, a linear model. One line per turn.
turns <- as.integer(c(commandArgs(TRUE), "160")[1])
set.seed(1)
m <- matrix(rnorm(160000), 400)
for (turn in seq_len(turns)) {
  m <- m %*% m
  m <- m / max(abs(m))
  d <- data.frame(x = rnorm(3000), g = sample(letters, 3000, TRUE))
  d$y <- d$x * turn + rnorm(3000)
  fit <- coef(lm(y ~ x, d))
  means <- tapply(d$y, d$g, mean)
  cat(turn, sprintf("%a", sum(m)), sprintf("%a", fit), sprintf("%a", means[["q"]]), "\n")
  flush(stdout())
}
cat("PASS\n")
