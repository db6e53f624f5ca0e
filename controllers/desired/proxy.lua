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
-- position in both lists. The first line names this program: two programs never use the same list.
local file = "/etc/memcached/proxy/servers"

local function read()
  local f = io.open(file)
  local text = f and f:read("a")
  if f then f:close() end
  return text
end

local loaded = read()
assert(loaded:find("^program " .. program .. "\n"), "the list of servers is for another program")

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
  local phase, name, foreign, ring = loaded:match("phase (%d)"), hash(loaded), {}, mcp.dist_ring_hash
  for i, servers in ipairs(source and source.pools or {}) do
    for n, server in ipairs(servers) do servers[n] = mcp.backend("source " .. server, server:match("^(.*):(%d+)$")) end
    -- The mode is that of libmemcached. For a pool of one server, any is right.
    foreign[i] = mcp.pool(servers, { iothread = false, dist = ring, hash = ring.hash, omode = "twemproxy" })
  end
  if not phase or phase == "0" then
    local servers = phase and old or new
    return { name = name, foreign = foreign, stay = pool(#servers, servers, function() return true end) }
  end
  local function moves(i) return old[i] ~= new[i] end
  local before = pool(#old, old, function(i) return #old < #new or moves(i) end)
  local after = pool(#new, new, function(i) return #new < #old or moves(i) end)
  local pools = { name = name, foreign = foreign, first = before, second = after,
    stay = pool(math.max(#old, #new), old, function(i) return not moves(i) end) } -- fails for keys whose server changes
  if phase == "2" then pools.first, pools.second, pools.moving = after, before, true end
  return pools
end

-- Ways to treat a request while servers change: docs/reference/proxy-requests.md has each request and the reason.
local kinds = { [mcp.CMD_GET] = "read", [mcp.CMD_GETS] = "read", [mcp.CMD_SET] = "write", [mcp.CMD_ADD] = "add",
  [mcp.CMD_DELETE] = "delete", [mcp.CMD_TOUCH] = "touch", [mcp.CMD_GAT] = "touch", [mcp.CMD_GATS] = "touch" }

local function kind(request)
  local command = request:command()
  local function has(flag) return request:has_flag(flag) end
  if command == mcp.CMD_MG then
    return has("T") and "touch" or (has("N") or has("R")) and "change" or "read"
  elseif command == mcp.CMD_MD then
    return (has("I") or has("E")) and "change" or has("x") and "touch" or has("C") and "change" or "delete"
  elseif command == mcp.CMD_MS then
    local _, mode = request:flag_token("M")
    mode = (mode or "S"):sub(1, 1)
    return mode == "E" and "add" or mode == "S" and not has("C") and "write" or "change"
  end
  return kinds[command] or "change"
end

-- Whether a request changes nothing if there is no item, and its answer is then that of a miss.
local function needs_item(request)
  local command = request:command()
  return command ~= mcp.CMD_CAS and command ~= mcp.CMD_ME and not request:has_flag("C") and not request:has_flag("N")
end

-- For an item on its way, the new server has a placeholder: it is empty, and its CAS is at least this number.
local LEASE <const> = 1 << 62
-- For an item that is copied from another cache, its CAS is at least this number, and less than the other one.
local COPY <const> = 1 << 61
local absent = { [mcp.MCMC_CODE_END] = true, [mcp.MCMC_CODE_NOT_FOUND] = true, [mcp.MCMC_CODE_NOT_STORED] = true }
local unreachable <const> = "SERVER_ERROR server unreachable\r\n"
local tries <const> = 7
-- What internal requests get in place of a miss: a response can be rendered once in a request, as the client's answer.
local missing = { ok = function() return true end, code = function() return mcp.MCMC_CODE_NOT_FOUND end,
  hit = function() end, line = function() end, raw_string = function() end }

-- Hashes by whose remainder clients of another cache choose a server: gomemcache the first, libmemcached the other one.
local hashes = {}
function hashes.CRC32(key)
  local h = 0xffffffff
  for i = 0, 8 * #key - 1 do h = h >> 1 ~ ((h ~ key:byte(i // 8 + 1) >> i % 8) & 1) * 0xedb88320 end
  return ~h & 0xffffffff
end
function hashes.OneAtATime(key)
  local h = 0
  for i = 1, #key do h = (h + key:byte(i)) * 1025 & 0xffffffff h = h ~ h >> 6 end
  h = h * 9 & 0xffffffff
  return (h ~ h >> 11) * 32769 & 0xffffffff
end

function mcp_config_routes(pools)
  local route = mcp.funcgen_new()
  local stay, first, second, foreign = {}, {}, {}, {}
  for i = 1, source and 9 * tries or pools.first and 3 * tries or 1 do -- a handle serves once in a request
    stay[i] = route:new_handle(pools.stay)
    if pools.first then first[i], second[i] = route:new_handle(pools.first), route:new_handle(pools.second) end
  end
  for i, pool in ipairs(pools.foreign) do foreign[i] = { route:new_handle(pool) } end
  local null = mcp.res_mutator_new({ t = "resnull", idx = 1 })
  route:ready({ n = pools.name, u = 1, f = function(rctx)
    local nothing, internal = rctx:response_new(), false
    local function miss(request)
      if internal then return missing end
      null(nothing, request)
      return nothing
    end
    local function is_error(response) return (response:raw_string() or ""):find("^%u*_?ERROR") end
    local function is_silent(request) return request:raw_line():lower():find(" noreply%s*$") end -- memcached: noreplY
    local function is_read(request) return request:raw_line():find("^m?g") end -- get, gets, gat, gats, mg

    -- An unreachable server holds nothing for the moment, so a read is a miss. But it may come back with its items, so
    -- a write, above all a delete, is an error. A request with noreply gets no answer, as from a server.
    local function fail(request)
      return (is_read(request) or is_silent(request) and not internal) and miss(request) or unreachable
    end
    local function answer(request, response)
      return (response:ok() or is_error(response) and not is_silent(request)) and response or fail(request)
    end
    local asked, treat, serve = {}, {}, nil
    local function ask(request, servers)
      asked[servers] = (asked[servers] or 0) + 1
      return rctx:enqueue_and_wait(request, servers[asked[servers]])
    end
    -- Waits for an item on its way, in all half a second: the mover may wait for a processor.
    local function pause(try) rctx:sleep(0.002 * 2 ^ try) end
    local function meta(request, command, servers, rest, value, key)
      local base64 = not key and request:has_flag("b") and " b" or ""
      if command == "me" then base64 = base64:rep(2) end -- memcached 1.6.45 ignores the flag if nothing follows it
      local line = command .. " " .. (key or request:key()) .. (rest or "") .. base64 .. "\r\n"
      return (servers and ask or serve)(mcp.request(line, value), servers)
    end

    -- What a server has for the key: "item", "none", or a placeholder; nil if it is unreachable. The command mg would
    -- not do: for an item that was marked as stale, the first answer asks the client for a new value, and no other.
    local function state(request, servers)
      local response = meta(request, "me", servers)
      if not response:ok() then return nil end
      local cas = tonumber((response:line() or ""):match(" cas=(%d+)") or 0)
      return cas == 0 and "none" or cas < COPY and "item" or cas < LEASE and "copying" or "placeholder"
    end

    -- An item that is moved between the first two requests is found by the next try. An empty answer may be that of a
    -- placeholder, unless an item was there before.
    function treat.read(request)
      local response, held
      for try = 1, pools.moving and tries or 1 do
        response = ask(request, first)
        local empty = pools.moving and held ~= "item" and response:hit() and response:vlen() == 0
        if response:hit() and not empty or is_error(response) then return response end
        held = empty and state(request, first)
        if held ~= "item" then
          local other = ask(request, second)
          if other:hit() then return other end
          if held == "placeholder" then pause(try) elseif try > 1 then break end
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
    -- servers have an item if a proxy was stopped before it deleted one of them. While items move, the item may leave the
    -- old server at any moment. With the flag N, the request would then create another one there. And a request that
    -- keeps the CAS, such as touch, would be lost if the mover read the item before: to append nothing changes the CAS.
    function treat.change(request, touches)
      for try = 1, tries do
        local other = state(request, second)
        local own = other and state(request, first)
        if not own then return fail(request) end
        if own == "item" or own == "copying" and other ~= "item" then
          if other == "item" and not meta(request, "md", second):ok() then return fail(request) end
          return answer(request, ask(request, first))
        elseif other == "item" then
          local command, flags = request:raw_line():match("^(%S+ %S+)(.*)$")
          local without = request:has_flag("N") and mcp.request(command .. flags:gsub(" N%S+", "") .. "\r\n", request)
          local response = ask(without or request, second)
          local renew = touches and response:ok() and not absent[response:code()]
          local last = renew and meta(request, "ms", second, " 0 MA", "\r\n") or response
          if not last:ok() or not absent[last:code()] then return answer(request, last:ok() and response or last) end
        elseif own == "none" then
          return needs_item(request) and miss(request) or create(request)
        end
        pause(try)
      end
      return fail(request)
    end

    treat.touch = treat.change

    function serve(request)
      local response = ask(request, stay)
      if not pools.first or response:ok() or is_error(response) then return answer(request, response) end
      local name = kind(request)
      return treat[name](request, name == "touch" and pools.moving)
    end

    -- Another cache, which only reads reach. A read that finds no item copies the item from there. Each other request
    -- first notes that its key is no longer read there: otherwise, an older value would come back once the item is
    -- deleted or expires. The placeholder keeps a copy from replacing what somebody wrote or deleted meanwhile.
    local function send(...) -- nil if the server is unreachable
      local response = meta(...)
      return type(response) ~= "string" and response:ok() and response or nil
    end
    local function note(request) return "proxy-source-" .. hash(request:key()) end
    local function is_placeholder(cas) return cas and tonumber(cas) >= COPY and tonumber(cas) < LEASE end

    -- Copies the item. Returns whether the key may have an item now.
    local function copy(request)
      local lease, pick = math.random(COPY, LEASE - 1), hashes[source.hash]
      local held = send(request, "mg", nil, " c N3 E" .. lease)
      local line = held and held:line() or ""
      if not line:find("W") then return line:find("c") end
      local from = pick and pick(request:key()) % #foreign + 1 or 1
      local noted = send(request, "ma", nil, "", nil, note(request))
      local item = noted and absent[noted:code()] and os.time() < source.ends and
        meta(request, "mg", foreign[from], " f t v")
      local flags, ttl = (item and item:hit() and item:line() or ""):match("f(%d+) t(%-?[1-9]%d*)")
      -- memcached takes more than 30 days for a date, which has 31 bits.
      ttl = ttl and (tonumber(ttl) < 0 and 0 or math.min(ttl + os.time(), 0x7fffffff))
      local rest = ttl and (" %d C%d F%s T%d"):format(item:vlen(), lease, flags, ttl)
      local is_short = rest and item:vlen() < 8192 -- as a value, a response ends after the read buffer, 16 KiB
      local value = rest and (is_short and item or item:raw_string():sub(-item:vlen() - 2))
      if rest and send(request, "ms", nil, rest, value) then return true end
      send(request, "md", nil, " C" .. lease)
    end

    -- An answer without a value may be that of a placeholder.
    local function read(request)
      for try = 1, tries do
        local response = serve(request)
        if is_error(response) or response:hit() and response:vlen() > 0 then return response end
        local held = response:hit() and send(request, "mg", nil, " c s")
        local cas, size = (held and held:line() or ""):match("c(%d+) s(%d+)")
        local is_item = size == "0" or size and request:raw_line():find("^mg")
        if is_placeholder(cas) then
          pause(try)
        elseif is_item or not held and (try > 1 or not copy(request)) then
          return response
        end
      end
      return miss(request)
    end

    -- A placeholder that stays is that of a proxy that was stopped. Notes last for an hour longer than they are needed,
    -- because clocks differ.
    local function serve_with_source(request)
      local name = kind(request)
      if name == "read" then return read(request) end
      for try = 1, name == "write" and 0 or tries do
        local held = send(request, "me")
        local cas = held and (held:line() or ""):match(" cas=(%d+)")
        if is_placeholder(cas) then
          pause(try)
          if try == tries then send(request, "md", nil, " C" .. cas) end
        elseif cas or try > 1 or not copy(request) then
          break
        end
      end
      local noted = send(request, "ms", nil, " 1 T" .. source.ends + 3600, "1\r\n", note(request))
      return noted and serve(request) or unreachable
    end

    return function(request)
      for list in pairs(asked) do asked[list] = 0 end
      if not source or os.time() > source.ends + 60 then return serve(request) end -- no placeholder is left then
      internal = true
      local response = serve_with_source(request)
      internal = false
      return response == missing and miss(request) or response == unreachable and fail(request) or response
    end
  end })
  mcp.attach(mcp.CMD_ANY_STORAGE, route)
end
