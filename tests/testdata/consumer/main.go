// Consumer is a program outside of the module that imports it. It prints the
// errors of a call from each package.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func main() {
	ctx := context.Background()
	print := func(call string, err error) {
		fmt.Printf("%s: unsupported=%t: %v\n", call, errors.Is(err, errors.ErrUnsupported), err)
	}
	_, err := rdmacm.Dial(ctx, "192.0.2.1:7471", nil)
	print("rdmacm.Dial", err)
	_, err = rdmacm.Listen(ctx, ":7471", nil)
	print("rdmacm.Listen", err)
	_, err = ibverbs.Devices()
	print("ibverbs.Devices", err)
	_, err = libibverbs.WcStatusStr(0)
	print("libibverbs.WcStatusStr", err)
	print("librdmacm.Connect", librdmacm.Connect(nil, nil))
}
