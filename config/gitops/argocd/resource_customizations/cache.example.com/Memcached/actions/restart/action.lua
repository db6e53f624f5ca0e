local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["cache.example.com/restartedAt"] = os.date("!%Y-%m-%dT%XZ")
return obj
