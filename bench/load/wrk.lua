-- One kind of request on every connection, or a pair of which the second needs what the first has answered.
-- METHOD, BODY and BEARER describe a request that is always the same: wrk builds it once and sends it without running Lua.
-- CALL names a pair or a series instead; TOPIC and COUNT say on what, and how many items there are.
local call, topic = os.getenv("CALL"), os.getenv("TOPIC")
local total = tonumber(os.getenv("COUNT") or "0")

wrk.method = os.getenv("METHOD") or "POST"
wrk.headers["Content-Type"] = "application/json"
if os.getenv("BEARER") then
  wrk.headers["Authorization"] = "Bearer " .. os.getenv("BEARER")
end
wrk.body = os.getenv("BODY")

-- Read by `done` from the only thread: what was finished, and whether something was not as expected.
finished, unexpected = 0, 0

local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long us; } now_t; int gettimeofday(now_t *now, void *zone);")
local function now_us()
  local now = ffi.new("now_t")
  ffi.C.gettimeofday(now, nil)
  return tonumber(now.s) * 1000000 + tonumber(now.us)
end

local function post(path, body)
  return wrk.format("POST", path, nil, body)
end

local function stop()
  wrk.thread:stop()
end

-- The whole is done: say how long it took. wrk itself sleeps until its time is up; the caller ends it.
local begun_us
local function complete()
  io.write(string.format("COMPLETE %d\n", now_us() - begun_us))
  io.flush()
  stop()
end

local waiting = {}

-- Claim 8 jobs, ack them, until COUNT are acked or none is left.
if call == "claim" then
  function request()
    begun_us = begun_us or now_us()
    local seqs = table.remove(waiting)
    if seqs then
      return post("/v0/topics/" .. topic .. "/ack", '{"node":"w","seqs":[' .. seqs .. "]}")
    end
    return post("/v0/topics/" .. topic .. "/claim", '{"node":"w","max":8}')
  end
  local acked = 0
  function response(status, _, body)
    if status ~= 200 then
      unexpected = unexpected + 1
      return stop()
    end
    local count = body:match('^{"topic":"[^"]*","acked":(%d+)')
    if count then
      acked = acked + tonumber(count)
      finished = finished + 1
      if acked >= total then complete() end
      return
    end
    local seqs = {}
    for seq in body:gmatch('"%$seq":(%d+)') do
      seqs[#seqs + 1] = seq
    end
    if #seqs > 0 then
      waiting[#waiting + 1] = table.concat(seqs, ",")
    end
  end
end

-- Nack jobs 1 to COUNT, 8 at a time.
if call == "nack" then
  local next_seq = 1
  function request()
    local seqs = {}
    for seq = next_seq, next_seq + 7 do
      seqs[#seqs + 1] = seq
    end
    next_seq = next_seq + 8
    return post("/v0/topics/" .. topic .. "/nack", '{"node":"w","seqs":[' .. table.concat(seqs, ",") .. "]}")
  end
  function response(status, _, body)
    if status ~= 200 or not body:find('"nacked":8', 1, true) then
      unexpected = unexpected + 1
    else
      finished = finished + 1
    end
    if next_seq + 8 > total then stop() end
  end
end

-- Append COUNT records in batches of 100, the body given; a connection that comes too late asks for health.
if call == "enqueue" then
  local asked, acknowledged = 0, 0
  local batch, health
  function request()
    batch = batch or post("/v0/topics/" .. topic, wrk.body)
    health = health or wrk.format("GET", "/v0/health", nil, "")
    asked = asked + 1
    -- wrk asks for one request before it starts, and does not send it.
    if asked == 2 then begun_us = now_us() end
    return (asked - 2) * 100 < total and batch or health
  end
  function response(status, _, body)
    if status ~= 200 and status ~= 201 then
      unexpected = unexpected + 1
      return stop()
    end
    if body:sub(1, 9) == '{"topic":' then
      acknowledged = acknowledged + 100
      if acknowledged == total then complete() end
    end
  end
end

-- Consume 10 messages of a group, ack them.
if call == "consume" then
  local consume = '{"topic_id":"' .. topic .. '","group_id":"bench","start":"Earliest","limit":10}'
  function request()
    local upto = table.remove(waiting)
    if upto then
      local body = '{"topic_id":"%s","group_id":"bench","from_offset":%d,"upto_offset":%d}'
      return post("/v1/api/topics/ack", body:format(topic, upto - 9, upto))
    end
    return post("/v1/api/topics/consume", consume)
  end
  function response(status, _, body)
    if status ~= 200 then
      unexpected = unexpected + 1
      return stop()
    end
    if body:sub(1, 14) == '{"messages":[]' then
      return stop()
    end
    local upto = body:match('"next_offset":(%d+)')
    if upto and body:sub(1, 12) == '{"messages":' then
      waiting[#waiting + 1] = tonumber(upto) - 1
    else
      finished = finished + 1
    end
  end
end

local only
function setup(thread)
  only = thread
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"us":%d,"p50_us":%d,"p99_us":%d,"errors":%d,"finished":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status + errors.read + errors.write + errors.timeout + only:get("unexpected"), only:get("finished")))
end
