// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"os"
	"slices"
	"strings"
)

// check looks into one thing.
type check struct {
	name  string
	lack  string              // what is missing if it fails, for those that need it
	needs []string            // checks without whose success this one makes no sense
	where func(*machine) bool // nil, or which machines it is for; the others' reports lack it
	look  func(context.Context, *machine) Finding
}

// checks are in the order in which a failure explains those after it.
var checks = []check{
	{name: "libraries", lack: "no C library", look: libraries},
	{name: "modules", lack: "no kernel modules", look: modules},
	{name: "device files", lack: "no access to the device files", needs: []string{"modules"}, look: deviceFiles},
	{name: "locked memory", lack: "too little locked memory", look: lockedMemory},
	{name: "container", look: container},
	{name: "limits", lack: "no room under the limits", look: limits},
	{name: "devices", lack: "no device", needs: []string{"libraries", "device files", "limits"}, look: devices},
	{name: "ports", lack: "no active port", needs: []string{"devices"}, look: ports},
	{name: "interfaces", lack: "no network interface", needs: []string{"ports"}, look: interfaces},
	{name: "addresses", lack: "no IP address", needs: []string{"interfaces"}, look: addresses},
	{name: "GIDs", lack: "no GID", needs: []string{"addresses"}, look: gids},
	{name: "routes", needs: []string{"addresses"}, look: routes},
	{name: "firewall", needs: []string{"ports"}, look: firewall},
	{name: "connection", needs: []string{"GIDs", "locked memory"}, look: connection},
	{name: "GPU memory", needs: []string{"devices"}, where: (*machine).hasGPU, look: gpuMemory},
}

// Run runs all checks on this machine, and those of the way to a peer, unless
// it is the zero value.
func Run(ctx context.Context, peer Peer) Report {
	m, err := thisMachine()
	if err != nil {
		return Report{Findings: []Finding{{Check: "system", Status: Fail, Found: err.Error()}}}
	}
	name, network, _ := strings.Cut(os.Getenv(variable), ":")
	soft := name == "soft"
	switch {
	case soft && network != "":
		return m.run(ctx, udpChecks(peer))
	case soft && peer.Host != "":
		return m.run(ctx, append(slices.Clone(softChecks), check{name: "peer", look: softPeer}))
	case soft:
		return m.run(ctx, softChecks)
	case peer.Host == "":
		return m.run(ctx, checks)
	}
	m.peer = peer
	report := m.run(ctx, slices.Concat(checks, peerChecks))
	report.Peer = peer.Host
	return report
}

func (m *machine) run(ctx context.Context, checks []check) Report {
	report := Report{Works: true}
	lacking := map[string]string{} // by the name of what failed or was left out
	for _, c := range checks {
		if c.where != nil && !c.where(m) {
			continue
		}
		f := Finding{Status: Skipped}
		for _, need := range c.needs {
			if lack := lacking[need]; lack != "" && f.Found == "" {
				f.Found, lacking[c.name] = "not checked: "+lack, lack
			}
		}
		if f.Found == "" {
			f = c.look(ctx, m)
		}
		f.Check = c.name
		if f.Status == Fail {
			report.Works, lacking[c.name] = false, c.lack
		}
		report.Findings = append(report.Findings, f)
	}
	return report
}
