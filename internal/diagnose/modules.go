package diagnose

import (
	"context"
	"strings"
)

// neededModules are those that programs talk to, with what each makes in /sys;
// they may be built in.
var neededModules = []struct{ name, sign string }{
	{"ib_uverbs", "sys/class/infiniband_verbs"},
	{"rdma_ucm", "sys/class/misc/rdma_cm"},
}

func modules(_ context.Context, m *machine) Finding {
	var loaded, missing []string
	for _, module := range neededModules {
		if m.exists(module.sign) {
			loaded = append(loaded, module.name)
		} else {
			missing = append(missing, module.name)
		}
	}
	if len(missing) == 0 {
		return Finding{Status: OK, Found: strings.Join(loaded, " and ") + " are loaded"}
	}
	f := Finding{Status: Fail, Found: strings.Join(missing, " and ") + " not loaded"}
	release := m.read("proc/sys/kernel/osrelease")
	load := "modprobe -a " + strings.Join(missing, " ")
	switch list := "lib/modules/" + release + "/modules.dep"; {
	case m.hasModules(list, missing):
		f.Commands = []string{load}
	case m.exists(list):
		f.Found += ", and the kernel " + release + " has no such modules here"
		f.Remedy = "install the rest of the kernel's modules (on Ubuntu linux-modules-extra-" + release + "), then: " + load
	default: // as in a container
		f.Remedy = "on the host: " + load
	}
	return f
}

func (m *machine) hasModules(list string, names []string) bool {
	text := m.read(list)
	for _, name := range names {
		if !strings.Contains(text, "/"+name+".ko") {
			return false
		}
	}
	return true
}
