local health = {status = "Progressing", message = "Waiting for the operator"}
if obj.status == nil or obj.status.conditions == nil then
  return health
end
-- A status of an older spec says nothing about this one.
if obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end
local function is(name)
  return conditions[name] ~= nil and conditions[name].status == "True"
end

if conditions.Ready ~= nil then
  health.message = conditions.Ready.message
end
if is("Stalled") then
  health.status = "Degraded"
  health.message = conditions.Stalled.message
elseif is("Reconciling") then
  health.message = conditions.Reconciling.message
elseif obj.spec.paused then
  health.status = "Suspended"
  health.message = "Paused: " .. health.message
elseif is("Ready") then
  health.status = "Healthy"
end
return health
