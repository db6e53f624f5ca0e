-- Configuration of memcached's built-in proxy: https://docs.memcached.org/features/proxy/
-- Keys are spread over the servers of the file servers, one address:port a line. When the file changes, it is read again
-- and no client notices. The addresses are no names: a look-up would block all clients of a thread.
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
  mcp.backend_connect_timeout(0.25) -- seconds
  mcp.backend_retry_waittime(1) -- seconds until a server that did not answer is tried again
  mcp.buffer_memory_limit(answers) -- beyond it, keys are misses
  local servers = {}
  for server in loaded:gmatch("[^\n]+") do
    local address, port = server:match("^%[?(.-)%]?:(%d+)$")
    servers[#servers + 1] = mcp.backend(server, address, tonumber(port))
  end
  if #servers == 0 then servers[1] = mcp.backend("none", "127.0.0.1", 1) end
  return mcp.pool(servers, { iothread = false })
end

-- A server that does not answer holds nothing: its keys are misses, not errors. What the client did wrong is its error.
function mcp_config_routes(pool)
  local route = mcp.funcgen_new()
  local server = route:new_handle(pool)
  local miss = mcp.res_mutator_new({ t = "resnull", idx = 1 })
  route:ready({ n = "route", u = 1, f = function(rctx)
    local nothing = rctx:response_new()
    return function(request)
      local response = rctx:enqueue_and_wait(request, server)
      if response:ok() or response:code() == mcp.MCMC_CODE_CLIENT_ERROR then return response end
      miss(nothing, request)
      return nothing
    end
  end })
  mcp.attach(mcp.CMD_ANY_STORAGE, route)
end
