// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"os/exec"
	"regexp"
	"strings"

	"github.com/verbena-go/verbena/ibverbs/link"
)

// roceUDP is the UDP destination port of RoCE v2.
const roceUDP = "4791"

// firewall looks for firewall rules that may drop RoCE v2. The rules of this
// machine apply to the packets of Soft-RoCE, but not to those of cards, which
// bypass the kernel. A firewall between the machines applies to both.
func firewall(ctx context.Context, m *machine) Finding {
	roce := false
	for _, p := range m.active() {
		roce = roce || p.LinkLayer == link.Ethernet
	}
	if !roce {
		return Finding{Status: OK, Found: "no rule affects InfiniBand"}
	}
	read := false
	for _, command := range [][]string{{"nft", "list", "ruleset"}, {"iptables-save"}, {"ip6tables-save"}} {
		rules, err := m.output(ctx, command[0], command[1:]...)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			return Finding{Status: Skipped, Found: "not checked: the rules cannot be read; try as root"}
		}
		read = true
		if rule := drops(rules); rule != "" {
			return Finding{
				Status: Warn, Found: "a rule may drop RoCE v2: " + rule,
				Remedy: "accept UDP port " + roceUDP + " before it, here and on the peers",
			}
		}
	}
	if !read {
		return Finding{Status: Skipped, Found: "not checked: neither nft nor iptables-save is installed to read the rules"}
	}
	return Finding{Status: OK, Found: "no rule here seems to drop UDP port " + roceUDP}
}

var (
	refuses = regexp.MustCompile(`\b(drop|reject|DROP|REJECT)\b`)
	mention = regexp.MustCompile(`\b` + roceUDP + `\b`)
	// dropInput matches a chain that drops or rejects input unless a rule
	// accepts it, as nft and as iptables-save print it.
	dropInput = regexp.MustCompile(`hook input .*policy drop|^:INPUT (DROP|REJECT)`)
)

// drops returns a rule that may drop RoCE v2, or "" if there seems to be none.
func drops(rules string) string {
	policy, accepted := "", false
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		switch {
		case mention.MatchString(line) && refuses.MatchString(line):
			return line
		case mention.MatchString(line):
			accepted = true
		case dropInput.MatchString(line):
			policy = line
		}
	}
	if accepted {
		return ""
	}
	return policy
}
