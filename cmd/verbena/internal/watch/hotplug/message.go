// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"path"
	"strings"
)

// Event tells that devices came or went.
type Event struct {
	Removed string // name of the device that has gone; empty: what programs can open may have changed
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
	action := values["ACTION"]
	if action != "add" && action != "remove" {
		return Event{}, false
	}
	switch values["SUBSYSTEM"] {
	case "infiniband_verbs": // what programs open: it comes first and goes first
		return Event{}, true
	case "infiniband":
		if action == "remove" {
			ev.Removed = path.Base(values["DEVPATH"])
		}
		return ev, true
	}
	return Event{}, false
}
