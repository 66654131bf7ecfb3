-- What wrk asks of a server of records: each connection puts one in, takes one, and acknowledges what was taken.
-- Prints requests, microseconds, and answers that are neither 200 nor 204.

local ids, turn = {}, 0
wrong = 0
local json = { ["Content-Type"] = "application/json" }

function request()
  local id = table.remove(ids)
  if id then
    return wrk.format("POST", "/ack/" .. id)
  end
  turn = turn + 1
  if turn % 2 == 1 then
    return wrk.format("POST", "/record", json, '{"payload":"a record of some forty characters here"}')
  end
  return wrk.format("GET", "/record")
end

function response(status, _, body)
  local id = status == 200 and body:match('"id":"([^"]+)"')
  if id then
    ids[#ids + 1] = id
  elseif status ~= 200 and status ~= 204 then
    wrong = wrong + 1
  end
end

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
end

function done(summary)
  local failed = 0
  for _, thread in ipairs(threads) do
    failed = failed + thread:get("wrong")
  end
  local errors = summary.errors
  failed = failed + errors.connect + errors.read + errors.write + errors.timeout
  print(string.format("RESULT %d %d %d", summary.requests, summary.duration, failed))
end
