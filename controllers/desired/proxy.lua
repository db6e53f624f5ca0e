-- Configuration of memcached's built-in proxy: https://docs.memcached.org/features/proxy/
-- Keys are spread over the servers of the file servers, one "name address:port" a line. When the file changes, it is
-- read again and no client notices. The name is for readers: a look-up would block all clients of a thread.
--
-- While the servers change, the file also has the servers before, as lines "old name address:port", and a line with a
-- phase. In "phase 0", proxies use the old servers alone. Then, a key whose server changes has its item on the old
-- server or on the new one. In "phase 1", proxies prefer the old server and know of the new one; in "phase 2", it is
-- the other way around. Not all proxies read the file at once, but no two may be more than one step apart: phase 0,
-- phase 1, phase 2, no phase with the new servers. While all are in phase 2, items are moved. Each write leaves an item
-- on one server only, so that no older value comes back. A server that is both an old and a new one has the same
-- position in both lists.
local file = "/etc/memcached/proxy/servers"

local function read()
  local f = io.open(file)
  if not f then return nil end
  local text = f:read("a")
  f:close()
  return text
end

local loaded = read()

-- The hash FNV-1a of the file names the routes: "stats proxyfuncs" says how many threads use which file.
local function hash(text)
  local h = 0xcbf29ce484222325
  for i = 1, #text do h = (h ~ text:byte(i)) * 0x100000001b3 end
  return string.format("%016x", h)
end

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

  local old, new, backends = {}, {}, {}
  for line in loaded:gmatch("[^\n]+") do
    local server = line:match("[^ ]+:%d+$")
    if server and not backends[server] then
      local address, port = server:match("^%[?(.-)%]?:(%d+)$")
      backends[server] = mcp.backend(server, address, tonumber(port))
    end
    table.insert(line:find("^old ") and old or new, server)
  end
  local none = mcp.backend({ label = "none", host = "127.0.0.1", port = "1", down = true }) -- fails at once
  local function pool(size, servers, uses)
    local list = {}
    for i = 1, math.max(size, 1) do list[i] = uses(i) and backends[servers[i]] or none end
    return mcp.pool(list, { iothread = false })
  end
  local phase, name = loaded:match("phase (%d)"), hash(loaded)
  if not phase or phase == "0" then
    local servers = phase and old or new
    return { name = name, stay = pool(#servers, servers, function() return true end) }
  end
  local function moves(i) return old[i] ~= new[i] end
  local before = pool(#old, old, function(i) return #old < #new or moves(i) end)
  local after = pool(#new, new, function(i) return #new < #old or moves(i) end)
  local pools = { name = name, first = before, second = after,
    stay = pool(math.max(#old, #new), old, function(i) return not moves(i) end) } -- fails for keys whose server changes
  if phase == "2" then pools.first, pools.second, pools.moving = after, before, true end
  return pools
end

local reads = {
  [mcp.CMD_GET] = true, [mcp.CMD_GETS] = true, [mcp.CMD_GAT] = true, [mcp.CMD_GATS] = true, [mcp.CMD_MG] = true,
}

-- Ways to treat a request while servers change. Meta commands with these flags compare or change an item.
local kinds = { [mcp.CMD_GET] = "read", [mcp.CMD_GETS] = "read", [mcp.CMD_MG] = "read", [mcp.CMD_SET] = "write",
  [mcp.CMD_MS] = "write", [mcp.CMD_DELETE] = "delete", [mcp.CMD_MD] = "delete", [mcp.CMD_ADD] = "add" }
local special = { [mcp.CMD_MG] = "NRTE", [mcp.CMD_MS] = "CIM", [mcp.CMD_MD] = "CIxTE" }

local function mode(request)
  local _, token = request:flag_token("M")
  return (token or "S"):upper()
end

local function kind(request)
  local command = request:command()
  for flag in (special[command] or ""):gmatch(".") do
    if request:has_flag(flag) then return command == mcp.CMD_MS and mode(request) == "E" and "add" or "change" end
  end
  return kinds[command] or "change"
end

-- Whether a request changes nothing if there is no item, and its answer is then that of a miss.
local function needs_item(request)
  local command = request:command()
  if command == mcp.CMD_CAS or command == mcp.CMD_ME or request:has_flag("C") then return false end
  return not request:has_flag("N") and not (command == mcp.CMD_MS and mode(request) == "S")
end

-- For an item on its way, the new server has a placeholder: it is empty, and its CAS is at least this number.
local LEASE <const> = 1 << 62
local absent = { [mcp.MCMC_CODE_END] = true, [mcp.MCMC_CODE_NOT_FOUND] = true, [mcp.MCMC_CODE_NOT_STORED] = true }
local unreachable <const> = "SERVER_ERROR server unreachable\r\n"
local tries <const> = 3

function mcp_config_routes(pools)
  local route = mcp.funcgen_new()
  local stay, first, second = route:new_handle(pools.stay), {}, {}
  for i = 1, pools.first and 6 * tries or 0 do -- a handle serves once in a request
    first[i], second[i] = route:new_handle(pools.first), route:new_handle(pools.second)
  end
  local null = mcp.res_mutator_new({ t = "resnull", idx = 1 })
  route:ready({ n = pools.name, u = 1, f = function(rctx)
    local nothing = rctx:response_new()
    local function miss(request)
      null(nothing, request)
      return nothing
    end
    local function is_error(response)
      local text = response:raw_string()
      return text and text:find("^%u*_?ERROR")
    end
    local function is_silent(request) return request:raw_line():lower():find(" noreply%s*$") end -- memcached: noreplY

    -- An unreachable server holds nothing for the moment, so a read is a miss. But it may come back with its items, so
    -- a write, above all a delete, is an error. A request with noreply gets no answer, as from a server.
    local function fail(request)
      return (reads[request:command()] or is_silent(request)) and miss(request) or unreachable
    end
    local function answer(request, response)
      if response:ok() or is_error(response) and not is_silent(request) then return response end
      return fail(request)
    end
    if not pools.first then
      return function(request) return answer(request, rctx:enqueue_and_wait(request, stay)) end
    end

    local asked, treat = 0, {}
    local function ask(request, servers)
      asked = asked + 1
      return rctx:enqueue_and_wait(request, servers[asked])
    end
    local function meta(request, command, servers)
      local base64 = request:has_flag("b") and " b" or ""
      if command == "me" then base64 = base64:rep(2) end -- memcached 1.6.45 ignores the flag if nothing follows it
      return ask(mcp.request(command .. " " .. request:key() .. base64 .. "\r\n"), servers)
    end

    -- What a server has for the key: "item", "placeholder" or "none"; nil if it is unreachable. The command mg would
    -- not do: for an item that was marked as stale, the first answer asks the client for a new value, and no other.
    local function state(request, servers)
      local response = meta(request, "me", servers)
      if not response:ok() then return nil end
      local cas = (response:line() or ""):match(" cas=(%d+)")
      return not cas and "none" or tonumber(cas) < LEASE and "item" or "placeholder"
    end

    -- An item that is moved between the first two requests is found by the next try. An empty answer may be that of a
    -- placeholder, unless an item was there before.
    function treat.read(request)
      local response, held
      for _ = 1, pools.moving and tries or 1 do
        response = ask(request, first)
        local empty = pools.moving and held ~= "item" and response:hit() and response:vlen() == 0
        if response:hit() and not empty or is_error(response) then return response end
        held = empty and state(request, first)
        if held ~= "item" then
          local other = ask(request, second)
          if other:hit() then return other end
          if held == "placeholder" then rctx:sleep(0.005) end
        end
      end
      return response:hit() and miss(request) or answer(request, response)
    end

    function treat.write(request)
      local response = ask(request, first)
      if not response:ok() and not is_error(response) then return fail(request) end
      return meta(request, "md", second):ok() and answer(request, response) or fail(request)
    end

    function treat.delete(request)
      local other = ask(request, second)
      local response = ask(request, first)
      if not other:ok() or not response:ok() then return answer(request, other:ok() and response or other) end
      return absent[other:code()] and response or other
    end

    -- Proxies in both phases may create an item at once: then neither does.
    local function create(request)
      local response = ask(request, first)
      if not response:ok() or absent[response:code()] then return answer(request, response) end
      local other = state(request, second)
      if other == "none" then return response end
      return meta(request, "md", first):ok() and other and miss(request) or fail(request)
    end

    function treat.add(request)
      local other = state(request, second)
      if not other then return fail(request) end
      return other == "none" and create(request) or miss(request)
    end

    -- No request of this kind may reach a placeholder: it would change the placeholder in place of the item. Both
    -- servers have an item if a proxy was stopped before it deleted one of them.
    function treat.change(request)
      for _ = 1, tries do
        local other = state(request, second)
        local own = other and state(request, first)
        if not own then return fail(request) end
        if own == "item" then
          if other == "item" and not meta(request, "md", second):ok() then return fail(request) end
          return answer(request, ask(request, first))
        elseif other == "item" then
          local response = ask(request, second)
          if not response:ok() or not absent[response:code()] then return answer(request, response) end
        elseif own == "none" then
          return needs_item(request) and miss(request) or create(request)
        end
        rctx:sleep(0.005)
      end
      return miss(request)
    end

    return function(request)
      local response = rctx:enqueue_and_wait(request, stay)
      if response:ok() or is_error(response) then return answer(request, response) end
      asked = 0
      return treat[kind(request)](request)
    end
  end })
  mcp.attach(mcp.CMD_ANY_STORAGE, route)
end
