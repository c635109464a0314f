-- Fifty workers and their producer over one wrk thread: append a batch, claim, ack what was claimed, and so on.
local jobs_total = tonumber(os.getenv("JOBS") or "300000")
local batch, claim_max = 100, 8
local ahead_max = 20000

local topic = os.getenv("TOPIC") or "bench"
local headers = { ["Content-Type"] = "application/json", ["Host"] = "127.0.0.1" }
local records = {}
for n = 1, batch do
  records[n] = string.format('{"data":{"type":"resize","url":"s3://bucket/image-%07d.png","w":256}}', n)
end
local append_body = '{"records":[' .. table.concat(records, ",") .. "]}"
local claim_body = '{"node":"w","max":' .. claim_max .. "}"

local produced, claimed, acked = 0, 0, 0
local to_ack = {}
local append, claim

function init(args)
  append = wrk.format("POST", "/v0/topics/" .. topic .. "?return_seqs=false", headers, append_body)
  claim = wrk.format("POST", "/v0/topics/" .. topic .. "/claim", headers, claim_body)
end

function request()
  local seqs = table.remove(to_ack)
  if seqs then
    return wrk.format("POST", "/v0/topics/" .. topic .. "/ack", headers, '{"node":"w","seqs":[' .. seqs .. "]}")
  end
  if produced < jobs_total and produced - claimed < ahead_max then
    produced = produced + batch
    return append
  end
  return claim
end

function response(status, _, body)
  if status ~= 200 then
    io.write("status ", status, " ", body, "\n")
    wrk.thread:stop()
    return
  end
  local count = body:match('^{"topic":"[^"]*","acked":(%d+)')
  if count then
    acked = acked + tonumber(count)
  elseif body:find('"claimed":[', 1, true) then
    local seqs = {}
    for seq in body:gmatch('"%$seq":(%d+)') do
      seqs[#seqs + 1] = seq
    end
    if #seqs > 0 then
      claimed = claimed + #seqs
      to_ack[#to_ack + 1] = table.concat(seqs, ",")
    end
  end
end
