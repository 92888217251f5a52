// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

var (
	loopback = netDev{name: "lo", up: true, carrier: true, loopback: true, addrs: prefixes("127.0.0.1/8", "::1/128")}
	eth0     = netDev{name: "eth0", mtu: 1500, up: true, carrier: true, addrs: prefixes("192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")}
	eth1     = netDev{name: "eth1", mtu: 1500, up: true, carrier: true, addrs: prefixes("fe80::2/64")}
	eth2     = netDev{name: "eth2", mtu: 351, up: true, carrier: true, addrs: prefixes("198.51.100.1/24")}
)

func TestJudgeDevices(t *testing.T) {
	ethernet := map[string]string{
		"sys/class/net/lo/type": "772\n", "sys/class/net/eth0/type": "1\n", "sys/class/net/eth1/type": "1\n", "sys/class/net/down/type": "1\n",
	}
	card := map[string]string{"drivers/mlx5_core/x": "", "sys/class/net/eth1/device/driver": "-> ../../../../../drivers/mlx5_core"}
	known := map[string]string{"sys/class/infiniband/rxe0/node_guid": "1"}
	const make = "load the card's driver, or make a Soft-RoCE device, which needs no card"
	for name, tt := range map[string]struct {
		files   map[string]string
		netDevs []netDev
		names   []string
		err     error
		want    Finding
	}{
		"one": {files: known, names: []string{"rxe0"}, want: Finding{Status: OK, Found: "rxe0"}},
		"an address on one interface": {files: with(outside, ethernet), netDevs: []netDev{loopback, eth1, eth0}, want: Finding{
			Status: Fail, Found: "there is no RDMA device", Remedy: make, Commands: []string{"rdma link add rxe0 type rxe netdev eth0"},
		}},
		"no address": {files: with(outside, ethernet), netDevs: []netDev{loopback, {name: "down"}, eth1}, want: Finding{
			Status: Fail, Found: "there is no RDMA device", Remedy: make, Commands: []string{"rdma link add rxe0 type rxe netdev eth1"},
		}},
		"an interface that is down": {files: with(outside, ethernet), netDevs: []netDev{loopback, {name: "down"}}, want: Finding{
			Status: Fail, Found: "there is no RDMA device", Remedy: make, Commands: []string{"rdma link add rxe0 type rxe netdev down"},
		}},
		"no interface": {files: with(outside, ethernet), netDevs: []netDev{loopback}, want: Finding{
			Status: Fail, Found: "there is no RDMA device", Remedy: make + ", on an Ethernet interface: rdma link add rxe0 type rxe netdev ETH",
		}},
		"a card without its module": {files: with(with(outside, ethernet), card), netDevs: []netDev{eth0, eth1}, want: Finding{
			Status: Fail, Found: "there is no RDMA device, but eth1 is on a card that may support RDMA", Commands: []string{"modprobe mlx5_ib"},
		}},
		"in a container": {files: with(inside, ethernet), netDevs: []netDev{eth0}, want: Finding{
			Status: Fail, Found: "there is no RDMA device",
			Remedy: "make one on the host; if it has one, pass /dev/infiniband to the container, and the device to its network namespace",
		}},
		"in a pod": {files: with(pod, ethernet), netDevs: []netDev{eth0}, want: Finding{
			Status: Fail, Found: "there is no RDMA device",
			Remedy: "make one on the node; if it has one, pass /dev/infiniband to the container, and the device to its network namespace, " +
				"as its device plugin and SR-IOV's CNI plugin do",
		}},
		"in another network namespace": {files: with(otherNetwork, ethernet), netDevs: []netDev{eth0}, want: Finding{
			Status: Fail, Found: "there is no RDMA device",
			Remedy: "look in the first network namespace too: if rdma system says \"netns exclusive\", " +
				"move its devices here with: rdma dev set NAME netns NAMESPACE",
		}},
		"without a provider": {files: with(known, map[string]string{"etc/os-release": "ID=debian"}), want: Finding{
			Status: Fail, Found: "libibverbs has no provider for rxe0",
			Remedy: "install libibverbs' provider for the driver", Commands: []string{"apt-get install -y ibverbs-providers"},
		}},
		"one of two without a provider": {files: known, names: []string{"mlx5_0"}, want: Finding{
			Status: Warn, Found: "libibverbs has no provider for rxe0", Remedy: "install libibverbs' provider for the driver",
		}},
		"one that cannot be asked": {files: known, err: errors.New("rxe0: no"), want: Finding{
			Status: Fail, Found: "rxe0: no", Remedy: "see the kernel's messages about it: dmesg",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, tt.files)
			m.netDevs = tt.netDevs
			require.Equal(t, tt.want, m.judgeDevices(tt.names, tt.err))
		})
	}
}

// network makes a machine with these devices and all interfaces.
func network(t *testing.T, devices ...ibverbs.DeviceInfo) *machine {
	t.Helper()
	m := fake(t, map[string]string{
		"sys/class/infiniband/rxe7/parent": "off\n", "sys/class/infiniband/rxe8/parent": "eth0\n",
		"sys/class/infiniband/rxe8/ports/1/gid_attrs/ndevs/0": "eth0\n",
	})
	m.netDevs = []netDev{loopback, eth0, eth1, eth2, {name: "off"}, {name: "unplugged", up: true}}
	m.devices = devices
	return m
}

func TestPorts(t *testing.T) {
	const plug = "plug the cable in, and check that the other end is up"
	up := roce("rxe0", "eth0", link.Active)
	for name, tt := range map[string]struct {
		devices []ibverbs.DeviceInfo
		want    Finding
	}{
		"active": {[]ibverbs.DeviceInfo{up}, Finding{Status: OK, Found: "rxe0 port 1 is active"}},
		"down": {[]ibverbs.DeviceInfo{roce("rxe7", "", link.Down)}, Finding{
			Status: Fail, Found: "rxe7 port 1 is down: network interface off is down", Commands: []string{"ip link set off up"},
		}},
		"unplugged": {[]ibverbs.DeviceInfo{roce("rxe1", "unplugged", link.Down)}, Finding{
			Status: Fail, Found: "rxe1 port 1 is down: network interface unplugged has no carrier", Remedy: plug,
		}},
		"one of two": {[]ibverbs.DeviceInfo{up, roce("rxe1", "off", link.Down)}, Finding{
			Status: Warn, Found: "rxe0 port 1 is active; rxe1 port 1 is down: network interface off is down", Commands: []string{"ip link set off up"},
		}},
		"no interface": {[]ibverbs.DeviceInfo{roce("rxe1", "", link.Down)}, Finding{
			Status: Fail, Found: "rxe1 port 1 is down: the link is Disabled", Remedy: plug,
		}},
		"no subnet manager": {[]ibverbs.DeviceInfo{fabric(link.Init, link.PhysLinkUp)}, Finding{
			Status: Fail, Found: "mlx5_0 port 1 is init: no subnet manager has set it up", Remedy: "start one on any host of the fabric, such as opensm",
		}},
		"no cable": {[]ibverbs.DeviceInfo{fabric(link.Down, link.PhysPolling)}, Finding{
			Status: Fail, Found: "mlx5_0 port 1 is down: the link is Polling", Remedy: plug,
		}},
		"of another network namespace": {[]ibverbs.DeviceInfo{roce("rxe8", "", link.Down, "203.0.113.1")}, Finding{
			Status: Fail, Found: "rxe8 port 1 is down: it is on eth0, which is not in this network namespace", Remedy: runThere,
		}},
		"no port": {[]ibverbs.DeviceInfo{{}}, Finding{
			Status: Fail, Found: "no device has a port", Remedy: "see the kernel's messages about it: dmesg",
		}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, ports(t.Context(), network(t, tt.devices...))) })
	}
}

const runThere = "run the program in the network namespace of the interface, such as the first, with: nsenter --net=/proc/1/ns/net PROGRAM; " +
	"or move an interface of the device here"

func TestInterfaces(t *testing.T) {
	here := roce("rxe0", "eth0", link.Active, "192.0.2.1")
	small := roce("rxe2", "eth2", link.Active, "198.51.100.1")
	iWARP := roce("siw0", "eth2", link.Active)
	iWARP.Device.Transport = libibverbs.IBV_TRANSPORT_IWARP
	// Its interface has the name of one that is here, and is not it.
	away := roce("rxe8", "", link.Active, "203.0.113.1")
	bare := roce("rxe8", "", link.Active)
	for name, tt := range map[string]struct {
		files   map[string]string
		devices []ibverbs.DeviceInfo
		want    Finding
	}{
		"here":                             {outside, []ibverbs.DeviceInfo{here}, Finding{Status: OK, Found: "rxe0 port 1 is on eth0"}},
		"a device of software without GID": {outside, []ibverbs.DeviceInfo{bare}, Finding{Status: OK, Found: "rxe8 port 1 is on eth0"}},
		"away": {outside, []ibverbs.DeviceInfo{away}, Finding{
			Status: Fail, Found: "rxe8 port 1 is on eth0, which is not in this network namespace", Remedy: runThere,
		}},
		"away from a container": {inside, []ibverbs.DeviceInfo{away}, Finding{
			Status: Fail, Found: "rxe8 port 1 is on eth0, which is not in this network namespace",
			Remedy: "give the container the host's network, with docker run --network=host, or an interface of the device",
		}},
		"away from a pod": {pod, []ibverbs.DeviceInfo{away}, Finding{
			Status: Fail, Found: "rxe8 port 1 is on eth0, which is not in this network namespace",
			Remedy: "give the pod the node's network, with hostNetwork: true, or an interface of the device, as SR-IOV's CNI plugin does",
		}},
		"one of two away": {outside, []ibverbs.DeviceInfo{away, here}, Finding{
			Status: Warn, Found: "rxe8 port 1 is on eth0, which is not in this network namespace; rxe0 port 1 is on eth0", Remedy: runThere,
		}},
		"none": {outside, []ibverbs.DeviceInfo{fabric(link.Active, link.PhysLinkUp)}, Finding{
			Status: Fail, Found: "mlx5_0 port 1 has none",
			Remedy: "rdma_cm finds devices by the IP addresses of their interfaces; for InfiniBand, load the module ib_ipoib",
		}},
		"small": {outside, []ibverbs.DeviceInfo{small}, Finding{
			Status: Fail, Found: "rxe2 port 1 is on eth2, whose MTU of 351 is below the 352 bytes that RoCE needs",
			Commands: []string{"ip link set eth2 mtu 1500"},
		}},
		"small for iWARP": {outside, []ibverbs.DeviceInfo{iWARP}, Finding{Status: OK, Found: "siw0 port 1 is on eth2"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := network(t, tt.devices...)
			for file, text := range tt.files {
				add(t, m, file, text)
			}
			require.Equal(t, tt.want, interfaces(t.Context(), m))
			for _, d := range tt.devices {
				require.Equal(t, d.Device.Name == "rxe8" && len(d.Ports[0].GIDs) > 0, m.elsewhere(d, d.Ports[0]))
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	good := roce("rxe0", "eth0", link.Active)
	bare := roce("rxe1", "eth1", link.Active, "fe80::2")
	vlan := roce("rxe1", "eth1", link.Active, "fe80::2")
	vlan.Ports[0].GIDs = append(vlan.Ports[0].GIDs, ibverbs.GIDEntry{NetDev: "eth2"})
	down := roce("rxe3", "off", link.Down)
	away := roce("rxe8", "", link.Active, "203.0.113.1")
	const give = "rdma_cm finds devices by IP address, so give the interface one: ip address add ADDRESS/PREFIX dev eth1"
	for name, tt := range map[string]struct {
		devices []ibverbs.DeviceInfo
		want    Finding
	}{
		"some":            {[]ibverbs.DeviceInfo{good, down}, Finding{Status: OK, Found: "rxe0 port 1 has 192.0.2.1/24, 2001:db8::1/64"}},
		"of a VLAN":       {[]ibverbs.DeviceInfo{vlan}, Finding{Status: OK, Found: "rxe1 port 1 has 198.51.100.1/24"}},
		"one of two away": {[]ibverbs.DeviceInfo{good, away}, Finding{Status: OK, Found: "rxe0 port 1 has 192.0.2.1/24, 2001:db8::1/64"}},
		"link-local":      {[]ibverbs.DeviceInfo{bare}, Finding{Status: Fail, Found: "rxe1 port 1 (eth1) has none", Remedy: give}},
		"one of two": {[]ibverbs.DeviceInfo{good, bare}, Finding{
			Status: Warn, Found: "rxe0 port 1 has 192.0.2.1/24, 2001:db8::1/64; rxe1 port 1 (eth1) has none", Remedy: give,
		}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, addresses(t.Context(), network(t, tt.devices...))) })
	}
}

func TestGIDs(t *testing.T) {
	good := roce("rxe0", "eth0", link.Active, "fe80::1", "192.0.2.1", "2001:db8::1")
	local := roce("rxe2", "eth2", link.Active, "fe80::1")
	old := roce("rxe2", "eth2", link.Active, "198.51.100.1")
	old.Ports[0].GIDs[0].Type = ibverbs.GIDTypeRoCEv1
	iwarp := roce("siw0", "eth2", link.Active)
	iwarp.Device.Transport = libibverbs.IBV_TRANSPORT_IWARP
	ib := fabric(link.Active, link.PhysLinkUp)
	ib.Ports[0].NetDev, ib.Ports[0].GIDs = "eth2", []ibverbs.GIDEntry{{Type: ibverbs.GIDTypeIB}}
	const again = "remove and add the addresses of eth2, from which the kernel makes the GIDs; for RoCE v2 see the card's and the driver's settings"
	for name, tt := range map[string]struct {
		devices []ibverbs.DeviceInfo
		want    Finding
	}{
		"some":       {[]ibverbs.DeviceInfo{good}, Finding{Status: OK, Found: "rxe0 port 1 has 2 of RoCE v2 with an address"}},
		"link-local": {[]ibverbs.DeviceInfo{local}, Finding{Status: Fail, Found: "rxe2 port 1 has 0 of RoCE v2 with an address", Remedy: again}},
		"RoCE v1":    {[]ibverbs.DeviceInfo{old}, Finding{Status: Fail, Found: "rxe2 port 1 has 0 of RoCE v2 with an address", Remedy: again}},
		"one of two": {[]ibverbs.DeviceInfo{good, local}, Finding{
			Status: Warn, Found: "rxe0 port 1 has 2 of RoCE v2 with an address; rxe2 port 1 has 0 of RoCE v2 with an address", Remedy: again,
		}},
		"iWARP":      {[]ibverbs.DeviceInfo{iwarp}, Finding{Status: OK, Found: "siw0 port 1 has no need of them"}},
		"InfiniBand": {[]ibverbs.DeviceInfo{ib}, Finding{Status: OK, Found: "mlx5_0 port 1 has 1"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, gids(t.Context(), network(t, tt.devices...))) })
	}
}

func TestRoutes(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	v4 := func(netDev, destination string) string {
		return netDev + "\t" + destination + "\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	}
	v6 := func(netDev, destination, length string) string {
		const zeros = "00000000000000000000000000000000"
		return fmt.Sprintf("%s %s %s 00 %s 00000100 00000001 00000000 00000001 %8s\n", destination, length, zeros, zeros, netDev)
	}
	const documentation = "20010db8000000000000000000000000"
	first, second := roce("rxe0", "eth0", link.Active), roce("rxe2", "eth2", link.Active)
	for name, tt := range map[string]struct {
		v4, v6 string
		want   Finding
	}{
		"one each": {v4("eth0", "000200C0") + v4("eth2", "006433C6"), v6("eth0", documentation, "40"), Finding{Status: OK, Found: "2 through eth0, 1 through eth2"}},
		"none": {v4("eth0", "000200C0"), v6("eth2", documentation, "80") + v6("eth2", "fe800000000000000000000000000000", "40"), Finding{
			Status: Warn, Found: "1 through eth0, 0 through eth2",
			Remedy: "no other host can be reached through eth2: give its address a prefix shorter than a whole address, or add a route",
		}},
		"one network": {v4("eth0", "000200C0") + v4("eth2", "000200C0"), "", Finding{
			Status: Warn, Found: "1 through eth0, 1 through eth2",
			Remedy: "eth0 and eth2 lead to the same network, and replies may leave through the wrong one: " +
				"give them different networks, or rules by source address",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, map[string]string{"proc/net/route": head + tt.v4, "proc/net/ipv6_route": tt.v6})
			m.netDevs, m.devices = []netDev{eth0, eth2}, []ibverbs.DeviceInfo{first, second}
			require.Equal(t, tt.want, routes(t.Context(), m))
		})
	}
}

func TestFirewall(t *testing.T) {
	const (
		input  = "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy drop;\n\t\tudp dport %s accept\n\t}\n}\n"
		remedy = "accept UDP port 4791 before it, here and on the peers"
	)
	refused := errors.New("exit status 1")
	open := Finding{Status: OK, Found: "no rule here seems to drop UDP port 4791"}
	for name, tt := range map[string]struct {
		rules map[string]string
		err   error // of programs that have no rules
		want  Finding
	}{
		"no program":   {nil, exec.ErrNotFound, Finding{Status: Skipped, Found: "not checked: neither nft nor iptables-save is installed to read the rules"}},
		"not root":     {nil, refused, Finding{Status: Skipped, Found: "not checked: the rules cannot be read; try as root"}},
		"no rules":     {map[string]string{"nft": ""}, exec.ErrNotFound, open},
		"accepted":     {map[string]string{"nft": fmt.Sprintf(input, "{ 53, 4791 }")}, exec.ErrNotFound, open},
		"other policy": {map[string]string{"iptables-save": ":INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n-A INPUT -p tcp -j DROP\n"}, exec.ErrNotFound, open},
		"not accepted": {map[string]string{"nft": fmt.Sprintf(input, "53")}, exec.ErrNotFound, Finding{
			Status: Warn, Found: "a rule may drop RoCE v2: type filter hook input priority 0; policy drop;", Remedy: remedy,
		}},
		"dropped": {map[string]string{"nft": "", "iptables-save": ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m udp --dport 4791 -j DROP\n"}, exec.ErrNotFound, Finding{
			Status: Warn, Found: "a rule may drop RoCE v2: -A INPUT -p udp -m udp --dport 4791 -j DROP", Remedy: remedy,
		}},
		"policy": {map[string]string{"iptables-save": ":INPUT DROP [0:0]\n"}, exec.ErrNotFound, Finding{
			Status: Warn, Found: "a rule may drop RoCE v2: :INPUT DROP [0:0]", Remedy: remedy,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := network(t, roce("rxe0", "eth0", link.Active))
			m.output = func(_ context.Context, name string, _ ...string) (string, error) {
				if rules, ok := tt.rules[name]; ok {
					return rules, nil
				}
				return "", tt.err
			}
			require.Equal(t, tt.want, firewall(t.Context(), m))
		})
	}
	require.Equal(t, OK, firewall(t.Context(), network(t, fabric(link.Active, link.PhysLinkUp))).Status)
}

func FuzzRules(f *testing.F) {
	f.Add(":INPUT DROP [0:0]\n-A INPUT -p udp --dport 4791 -j DROP", "rxe0 hca_handle=1 hca_object=max")
	f.Fuzz(func(t *testing.T, rules, values string) {
		if rule := drops(rules); rule != "" {
			require.Contains(t, rules, rule)
		}
		scarce(values)
	})
}
