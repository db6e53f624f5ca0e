-- Configuration of memcached's built-in proxy: https://docs.memcached.org/features/proxy/
-- Keys are spread over the servers of the file servers, one address:port a line. When the file changes, it is read
-- again and no client notices. The addresses are no names: a look-up would block all clients of a thread.
local file = "/etc/memcached/proxy/servers"

local function read()
  local f = io.open(file)
  if not f then return nil end
  local text = f:read("a")
  f:close()
  return text
end

local loaded = read()

function mcp_config_pools()
  mcp.register_cron("reload", { every = 1, func = function()
    local text = read()
    if text and text ~= loaded then mcp.schedule_config_reload() end
  end })
  -- The second failure in a row makes a server unreachable. A server that is frozen fails a request, and then the check
  -- of the new connection, which its kernel still accepts: clients wait for two read timeouts, once. TCP repeats a lost
  -- packet after 0.2 s and again after 0.6 s; a timeout below 0.2 s would make each lost packet a failure. With a limit
  -- of 0, an invalid request of one client, which costs the connection, would be a second of misses for all clients.
  mcp.backend_connect_timeout(0.25) -- seconds
  mcp.backend_read_timeout(0.5) -- seconds without any answer
  mcp.backend_failure_limit(1)
  mcp.backend_retry_waittime(1) -- seconds between attempts to reach it again, for which no request waits
  mcp.buffer_memory_limit(answers) -- divided among the threads; beyond its share, a thread gets no answers
  local servers = {}
  for server in loaded:gmatch("[^\n]+") do
    local address, port = server:match("^%[?(.-)%]?:(%d+)$")
    servers[#servers + 1] = mcp.backend(server, address, tonumber(port))
  end
  if #servers == 0 then servers[1] = mcp.backend("none", "127.0.0.1", 1) end
  return mcp.pool(servers, { iothread = false })
end

local reads = {
  [mcp.CMD_GET] = true, [mcp.CMD_GETS] = true, [mcp.CMD_GAT] = true, [mcp.CMD_GATS] = true, [mcp.CMD_MG] = true,
}

-- An unreachable server holds nothing for the moment, so a read is a miss. But it may come back with its items, so a
-- write, above all a delete, is an error. A request with noreply gets no answer, as from a server.
function mcp_config_routes(pool)
  local route = mcp.funcgen_new()
  local server = route:new_handle(pool)
  local miss = mcp.res_mutator_new({ t = "resnull", idx = 1 })
  route:ready({ n = "route", u = 1, f = function(rctx)
    local nothing = rctx:response_new()
    return function(request)
      local response = rctx:enqueue_and_wait(request, server)
      if response:ok() then return response end
      if not request:raw_line():lower():find(" noreply%s*$") then -- which memcached has changed to noreplY
        local answer = response:raw_string()
        if answer and answer:find("^%u*_?ERROR") then return response end
        if not reads[request:command()] then return "SERVER_ERROR server unreachable\r\n" end
      end
      miss(nothing, request)
      return nothing
    end
  end })
  mcp.attach(mcp.CMD_ANY_STORAGE, route)
end
