package hotplug

import (
	"path"
	"strings"
)

// Event is a device that came or went.
type Event struct {
	Device string // such as rxe0; that of Added may not be known
	Added  bool   // if not, it was removed
}

// parse reads what the kernel tells of any of its objects: lines that end with
// a zero, most of them NAME=VALUE.
func parse(message []byte) (ev Event, ok bool) {
	values := map[string]string{}
	for line := range strings.SplitSeq(string(message), "\x00") {
		if name, value, found := strings.Cut(line, "="); found {
			values[name] = value
		}
	}
	switch action, subsystem := values["ACTION"], values["SUBSYSTEM"]; {
	case action == "add" && subsystem == "infiniband_verbs": // what programs open
		return Event{Added: true}, true
	case action == "add" && subsystem == "infiniband":
		return Event{path.Base(values["DEVPATH"]), true}, true
	case action == "remove" && subsystem == "infiniband":
		return Event{path.Base(values["DEVPATH"]), false}, true
	}
	return Event{}, false
}
