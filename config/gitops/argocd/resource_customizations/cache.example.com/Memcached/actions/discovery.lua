local paused = obj.spec.paused == true
return {
  restart = {disabled = paused},
  pause = {disabled = paused},
  resume = {disabled = not paused},
}
