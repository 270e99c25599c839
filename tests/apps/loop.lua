-- Tables, closures, coroutines, string patterns, garbage collection. One line per turn.
local turns = tonumber(arg[1]) or 240
io.stdout:setvbuf("line")
local steps = coroutine.wrap(function()
    local n = 1
    while true do coroutine.yield(n) n = (n * 48271) % 2147483647 end
end)
local t = {}
for turn = 0, turns - 1 do
  for i = 0, 59999 do
    local k = (turn * 7919 + i * 104729) % 50021
    t[k] = (t[k] or "") .. string.char(97 + (i + turn) % 26)
    if #t[k] > 12 then t[k] = t[k]:sub(-8) end
  end
  local vowels, size = 0, 0
  for k = 0, 50020 do
    if t[k] then size = size + #t[k] vowels = vowels + select(2, t[k]:gsub("[aeiou]", "%0")) end
  end
  if turn % 7 == 0 then collectgarbage() end
  print(turn, size, vowels, steps(), t[turn % 50021])
end
print("PASS")
