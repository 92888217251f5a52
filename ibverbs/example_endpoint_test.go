// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
)

// Connect two queue pairs without package rdmacm: both programs send each
// other a line over a TCP connection.
func ExampleQP_ConnectTo() {
	var qp *ibverbs.QP // of type RC or UC
	conn, err := net.Dial("tcp", "192.0.2.1:18515")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	local, err := qp.Addr(ibverbs.QPAddrConfig{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(conn, local)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	remote, err := ibverbs.ParseQPAddr(line)
	if err != nil {
		log.Fatal(err)
	}
	if err := qp.ConnectTo(local, remote, ibverbs.ConnectConfig{}); err != nil {
		log.Fatal(err)
	}
}

func ExampleParseQPAddr() {
	e, err := ibverbs.ParseQPAddr("qpn=17 psn=0xa1b2c qkey=0 lid=0 gid=192.0.2.1 mtu=1024 reads=16 port=1 gidindex=1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.QPNum, e.GID.Addr(), e.MTU.Bytes())
	fmt.Println(e)
	// Output:
	// 17 192.0.2.1 1024
	// qpn=0x000011 psn=0x0a1b2c qkey=0x00000000 lid=0 gid=0000:0000:0000:0000:0000:ffff:c000:0201 mtu=1024 reads=16 port=1 gidindex=1
}

// Open the device that has an IP address of this machine.
func ExampleOpenAddr() {
	device, gid, err := ibverbs.OpenAddr(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	fmt.Println(device.Name(), gid.Port, gid.Index, gid.Type, gid.NetDev)
}

// Print what ibv_devinfo and show_gids do, as JSON.
func ExampleQueryDeviceInfo() {
	info, err := ibverbs.QueryDeviceInfo("")
	if err != nil {
		log.Fatal(err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(info); err != nil {
		log.Fatal(err)
	}
}
