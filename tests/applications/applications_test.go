// SPDX-License-Identifier: Apache-2.0

//go:build linux

package applications

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// application is a program, or two, that does the same work on the device and
// over TCP. Two programs also do it on the device over UDP, within the machine
// and between network namespaces.
type application struct {
	name     string
	telling  bool     // make test runs it
	machine  bool     // whether it does not run over UDP within the machine
	together bool     // whether it does not run between network namespaces
	packages []string // of Debian, which have the programs
	device   program
	tcp      program // may be missing
}

// program is how to start a program. In its fields, {host} is the server's
// address, {own} that of the program itself, {port} a free port and {folder} a
// folder of the test's. The files are written there.
type program struct {
	environment []string // its fields, too
	files       map[string]string
	prepare     string // runs first, none if empty
	server      string // none if empty
	client      string
	listens     bool   // whether the server listens on the device before anything else
	refused     string // what the client prints if the server does not listen yet
	done        string // what the client prints if all is well: not each program's exit status says that
	fails       string // what a program prints that fails although all was well; none if empty
}

// TestApplications runs each application on the device, over TCP, and on the
// device over UDP, there also between network namespaces. It prints how long
// the clients took.
func TestApplications(t *testing.T) {
	which := os.Getenv("VERBENA_APPLICATIONS")
	if which == "" {
		t.Skip("make applications runs it")
	}
	libraries := t.TempDir()
	require.Zero(t, process.Run(t, process.Cmd(t, "verbena", "softroce", "libs", libraries)).Wait())
	onDevice := func(environment ...string) starter {
		return func(args ...string) *exec.Cmd {
			cmd := process.Cmd(t, "verbena", append([]string{"softroce", "run", "-l", libraries}, args...)...)
			cmd.Env = append(os.Environ(), environment...)
			return cmd
		}
	}
	overUDP := func(i byte) starter { return onDevice("VERBENA_DEVICE=soft:udp=" + ownnetwork.Addr(i).String()) }
	device := network{"127.0.0.1", "127.0.0.1", onDevice(), onDevice(), listensOnDevice}
	udp := network{ownnetwork.Addr(1).String(), ownnetwork.Addr(2).String(), overUDP(1), overUDP(2), listensOnDevice}
	apart, err := apart(t, onDevice("VERBENA_DEVICE=soft:udp"))
	if err != nil {
		t.Logf("nothing runs between network namespaces: %v", err)
	}

	var took table
	for _, a := range applications {
		if which != "all" && !a.telling {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			a.needs(t)
			r := row{name: a.name, device: a.device.run(t, device)}
			if a.device.server != "" && !a.machine {
				r.udp = a.device.run(t, udp)
			}
			if a.device.server != "" && !a.together && apart != nil {
				r.apart = a.device.run(t, *apart)
			}
			r.tcp = a.tcp.run(t, tcp)
			took = append(took, r)
		})
	}
	for name, capabilities := range map[string][]string{"": nil, " of pinned memory": {"rdma-pin-all"}} {
		name = "QEMU's migration" + name
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("qemu-system-x86_64"); err != nil || which != "all" {
				t.Skip("make applications runs it if qemu-system-x86 is installed")
			}
			took = append(took, row{name: name, device: migrate(t, device.server, "rdma", capabilities...), tcp: migrate(t, tcp.server, "tcp")})
		})
	}
	t.Logf("how long the clients took:\n%v", took)
}

// needs skips the test if a program is not installed.
func (a application) needs(t *testing.T) {
	t.Helper()
	for _, p := range []program{a.device, a.tcp} {
		for _, line := range []string{p.prepare, p.server, p.client} {
			if line == "" {
				continue
			}
			if _, err := exec.LookPath(strings.Fields(line)[0]); err != nil {
				require.False(t, a.telling, "%s is not installed: apt-get install %s", strings.Fields(line)[0], strings.Join(a.packages, " "))
				t.Skipf("%v: apt-get install %s", err, strings.Join(a.packages, " "))
			}
		}
	}
}

// run runs the server, if there is one, and the client. It returns how long the
// client took, or 0 if there is no client.
func (p program) run(t *testing.T, n network) time.Duration {
	t.Helper()
	if p.client == "" {
		return 0
	}
	port, folder := freePort(t), t.TempDir()
	at := func(own string) *strings.Replacer {
		return strings.NewReplacer("{host}", n.host, "{own}", own, "{port}", port, "{folder}", folder)
	}
	for _, fill := range []*strings.Replacer{at(n.host), at(n.from)} {
		for name, text := range p.files {
			require.NoError(t, os.WriteFile(fill.Replace("{folder}/"+name), []byte(fill.Replace(text)), 0o600))
		}
	}
	if p.prepare != "" {
		words := strings.Fields(at(n.host).Replace(p.prepare))
		output, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
	start := func(by starter, fill *strings.Replacer, line string) *process.Process {
		cmd := by(strings.Fields(fill.Replace(line))...)
		for _, e := range p.environment {
			cmd.Env = append(cmd.Env, fill.Replace(e))
		}
		return process.Start(t, cmd)
	}
	var server *process.Process
	if p.server != "" {
		server = start(n.server, at(n.host), p.server)
		if p.listens {
			server.Eventually("listens", func() bool { return server.Ended() || n.listens(server) })
		}
	}
	for {
		began := time.Now()
		client := start(n.client, at(n.from), p.client)
		status := client.Wait()
		if took := time.Since(began); p.mayEnd(client, status) && regexp.MustCompile(p.done).MatchString(client.Output()) {
			if server != nil {
				status := server.Wait()
				require.True(t, p.mayEnd(server, status), "status %d: %s", status, server.Output())
			}
			return took
		}
		require.NotEmpty(t, p.refused, "%s", client.Output())
		require.Regexp(t, p.refused, client.Output())
		require.False(t, server.Ended(), "%s", server.Output())
	}
}

// mayEnd reports whether a process may end with the status.
func (p program) mayEnd(process *process.Process, status int) bool {
	return status == 0 || p.fails != "" && regexp.MustCompile(p.fails).MatchString(process.Output())
}

// freePort returns a TCP port that is not in use.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

var applications = []application{
	fio("write", true, 1024),
	fio("read", false, 1024),
	fio("send", false, 64),
	qperf("latency", false, "rc_lat", "tcp_lat"),
	qperf("bandwidth", true, "rc_bw", "tcp_bw"),
	qperf("bandwidth of reads", false, "rc_rdma_read_bw", "tcp_bw"),
	qperf("bandwidth of writes", false, "rc_rdma_write_bw", "tcp_bw"),
	pingpong("msg", true, "-e msg -p verbs", ""),
	pingpong("rxm", true, "-e rdm -p verbs;ofi_rxm", ""),
	pingpong("rxd", false, "-e rdm -p verbs;ofi_rxd", ""),
	datagrams(),
	ucx("tag_lat", "-s 8 -n 20000", "rc_v"),
	ucx("tag_bw", "-s 65536 -n 2000", "rc_v"),
	ucx("ucp_am_lat", "-s 8 -n 20000", "rc_v"),
	ucx("ucp_put_bw", "-s 65536 -n 2000", "rc_v"),
	ucx("ucp_get", "-s 65536 -n 2000", "rc_v"),
	ucx("stream_bw", "-s 65536 -n 2000", "rc_v"),
	ucx("tag_lat", "-s 1000 -n 2000", "ud_v"),
	mpich(2),
	mpich(4),
	openMPI("UCX", 2, "--mca pml ucx"),
	openMPI("UCX", 4, "--mca pml ucx"),
	openMPI("libfabric", 2, "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"),
	uDAPL(65536, 100),
	iSCSI(),
	openMPI("libfabric", 4, "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"),
}

// fio moves n blocks. If a block that it sends meets no receive, fio fails at
// once and then waits forever. The depths allow for 64 blocks without that.
// Over TCP, fio counts what a read has found of a block as a block: it would
// end before the other end has written all. So it reads until that ends.
func fio(verb string, telling bool, n int) application {
	work := fmt.Sprintf("bs=64k\nsize=%dk\niodepth=", n*64)
	files := func(engine string) map[string]string {
		return map[string]string{
			"server": "[job]\nport={port}\nrw=read\n" + engine + work + "64\n",
			"client": "[job]\nhostname={host}\nport={port}\nrw=write\n" + engine + work + "16\n",
		}
	}
	device, tcp := files("ioengine=rdma\n"), files("ioengine=net\nprotocol=tcp\n")
	device["client"] += "verb=" + verb + "\n"
	tcp["server"] += fmt.Sprintf("listen\nsize=%dk\n", 2*n*64)
	run := program{server: "fio {folder}/server", client: "fio {folder}/client", done: fmt.Sprintf(`issued rwts: total=0,%d,`, n)}
	a := application{name: "fio, " + verb, telling: telling, packages: []string{"fio"}, device: run, tcp: run}
	a.device.files, a.device.listens = device, true
	a.tcp.files, a.tcp.refused = tcp, "Connection refused"
	return a
}

// qperf measures for a second. The second test makes the server end. The server
// sends its port before it calls rdma_listen: between namespaces, the client's
// request may come earlier, and the server then waits forever.
func qperf(name string, telling bool, device, tcp string) application {
	run := func(test string) program {
		return program{
			server: "qperf -lp {port}", client: "qperf -lp {port} -cm 1 -t 1 {host} " + test + " quit",
			refused: "failed to connect", done: `(latency|bw) += `,
		}
	}
	return application{name: "qperf, " + name, telling: telling, together: true, packages: []string{"qperf"}, device: run(device), tcp: run(tcp)}
}

// pingpong is libfabric's, which compares what comes back. Messages have up to
// a MiB, or the size in flags. Connections need an address of an interface, and
// over UDP within the machine the devices have others. rxm may end with an
// error after everything was compared: when the peer has disconnected, the
// provider verbs reports sends as flushed whose completions it has not polled,
// although they have succeeded.
func pingpong(name string, telling bool, provider, flags string) application {
	run := func(provider string) program {
		flags := "fi_pingpong -c -I 100 -P {port} " + provider + " " + flags
		return program{
			server: strings.Replace(flags, "-P", "-B", 1), client: flags + " {host}",
			refused: "Connection refused", done: `4k +100 +=100`,
		}
	}
	rxm := strings.HasSuffix(provider, "rxm")
	device := run(provider)
	if rxm {
		device.fails = `(?s)1m +100 +=100.*Work Request Flushed Error`
	}
	return application{
		name: "libfabric, " + name, telling: telling, machine: strings.HasPrefix(provider, "-e msg") || rxm, together: rxm,
		packages: []string{"libfabric-bin"}, device: device, tcp: run("-e msg -p tcp"),
	}
}

// datagrams is libfabric's, of as many bytes as the device's MTU allows.
func datagrams() application {
	a := pingpong("datagrams", false, "-e dgram -p verbs", "")
	a.device.done = `1k +100 +=100`
	return a
}

func ucx(test, flags, transport string) application {
	n := flags[strings.LastIndex(flags, " ")+1:]
	run := func(environment ...string) program {
		return program{
			environment: environment,
			server:      "ucx_perftest -p {port}", client: "ucx_perftest -p {port} {host} -w 10 -t " + test + " " + flags,
			refused: "Connection refused", done: "Final: +" + n + " ",
		}
	}
	return application{
		name: "UCX, " + transport + ", " + test + " " + flags, packages: []string{"ucx-utils"},
		device: run("UCX_TLS="+transport, "UCX_NET_DEVICES=soft0:1"), tcp: run("UCX_TLS=tcp", "UCX_NET_DEVICES=lo"),
	}
}

// mpich runs testdata/collective.c, which checks what arrives. Over TCP, MPICH
// 4.0 with UCX 1.13 may hang.
func mpich(ranks int) application {
	run := func(environment ...string) program {
		return program{
			environment: environment,
			prepare:     "mpicc.mpich -O1 -o {folder}/collective testdata/collective.c",
			client:      fmt.Sprintf("mpirun.mpich -np %d %s", ranks, "{folder}/collective"),
			done:        `(?m)^right$`,
		}
	}
	return application{
		name: fmt.Sprintf("MPICH over UCX, %d ranks", ranks), packages: []string{"mpich", "libmpich-dev"},
		device: run("UCX_TLS=rc_v,ud_v,self", "UCX_NET_DEVICES=soft0:1"),
	}
}

// openMPI runs the program that mpich runs.
func openMPI(over string, ranks int, flags string) application {
	run := func(flags string) program {
		return program{
			environment: []string{
				"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "UCX_TLS=rc_v,ud_v,self", "UCX_NET_DEVICES=soft0:1",
			},
			prepare: "testdata/openmpicc {folder}",
			client:  fmt.Sprintf("mpirun.openmpi --oversubscribe -np %d %s {folder}/collective", ranks, flags),
			done:    `(?m)^right$`,
		}
	}
	return application{
		name: fmt.Sprintf("Open MPI over %s, %d ranks", over, ranks), packages: []string{"openmpi-bin"},
		device: run(flags), tcp: run("--mca pml ob1 --mca btl tcp,self"),
	}
}

// uDAPL is dtest, which compares what it writes and reads: n times size bytes.
// Its file names the address of a device.
func uDAPL(size, n int) application {
	flags := fmt.Sprintf("dtest -P device -b %d -B %d", size, n)
	run := program{
		environment: []string{"DAT_OVERRIDE={folder}/{own}"},
		files:       map[string]string{"{own}": `device u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "{own} 0" ""` + "\n"},
		server:      flags, client: flags + " -h {host}",
		refused: "Couldn.t connect", done: `DAPL Test Complete. PASSED`,
	}
	return application{name: "uDAPL", packages: []string{"dapl2-utils", "libdapl2"}, device: run}
}

// iSCSI is libiscsi with tgt as the target, over iSER on the device. The
// programs are in one script.
func iSCSI() application {
	run := func(driver string) program {
		return program{client: "testdata/iscsi {folder} {port} " + driver, done: `tests +8 +8 +8 +0`}
	}
	return application{name: "tgt and libiscsi", packages: []string{"tgt", "libiscsi-bin"}, device: run("iser"), tcp: run("iscsi")}
}
