package rdmacm_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// A member of a multicast group receives what another end sends to it.
func ExampleJoinGroup() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	group := netip.MustParseAddr("239.1.2.3")

	member, err := rdmacm.JoinGroup(ctx, group, &rdmacm.GroupConfig{LocalAddr: "192.0.2.1"})
	if err != nil {
		log.Fatal(err)
	}
	defer member.Close()
	memory, err := member.Alloc(4096, ibverbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	news, err := member.PostRecv(memory.Sub(0, member.MTU()))
	if err != nil {
		log.Fatal(err)
	}

	// Usually another program on another host.
	sender, err := rdmacm.JoinGroup(ctx, group, &rdmacm.GroupConfig{LocalAddr: "192.0.2.1", SendOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close()
	text, err := sender.Alloc(4096, 0)
	if err != nil {
		log.Fatal(err)
	}
	if err := sender.Send(ctx, text.Sub(0, copy(text.Bytes(), "to all members"))); err != nil {
		log.Fatal(err)
	}

	n, err := news.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	from, err := news.Sender() // for SendTo
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, from %v\n", memory.Bytes()[:n], from.Path.DGID.Addr())
}
