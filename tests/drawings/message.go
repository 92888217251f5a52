// SPDX-License-Identifier: Apache-2.0

package main

var message = drawing{
	name:  "message",
	title: "The way of a message",
	description: "The sending program posts a request into the send queue and rings the doorbell. Its device reads the memory and sends packets. " +
		"The peer's device takes a posted receive, writes the message to its memory and puts a completion into the completion queue, whose goroutine wakes. " +
		"It acknowledges the packets, and the sender's device completes the send.",
	width: 800, height: 640,
	draw: func(c *canvas) {
		const left, right, w = 20, 480, 300
		for _, end := range []struct {
			x       int
			program string
			queues  [3]string
			device  string
		}{
			{left, "a program: Conn.Send(ctx, data)", [3]string{"send queue", "memory", "completions"}, "the program's device"},
			{right, "its peer: Conn.Receive(ctx)", [3]string{"completions", "memory", "receive queue"}, "the peer's device"},
		} {
			c.box("plain", rect{end.x, 20, w, 44}, end.program)
			c.box("go", rect{end.x, 112, w, 56}, "ibverbs", "post and poll: one call of C for a batch")
			c.path("group", [2]int{end.x, 204}, [2]int{end.x + w, 204}, [2]int{end.x + w, 282}, [2]int{end.x, 282}, [2]int{end.x, 204})
			for i, queue := range end.queues {
				c.label("made", rect{end.x + 6 + 97*i, 216, 94, 54}, queue)
			}
			c.box("device", rect{end.x, 352, w, 44}, end.device)
		}
		a, b := left+53, right+53 // the middles of the first queues
		const step = 97           // to the next queue

		c.arrow([2]int{a, 64}, [2]int{a, 112})
		c.number(1, a, 87)
		c.arrow([2]int{a, 168}, [2]int{a, 216})
		c.number(2, a, 190)
		c.arrow([2]int{a, 270}, [2]int{a, 352})
		c.number(3, a, 326)
		c.arrow([2]int{a + step, 270}, [2]int{a + step, 352})
		c.number(3, a+step, 326)
		c.arrow([2]int{left + w, 364}, [2]int{right, 364})
		c.number(4, 400, 364)
		c.text("small", "middle", 400, 346, "packets")
		c.arrow([2]int{right, 386}, [2]int{left + w, 386})
		c.number(7, 400, 386)
		c.text("small", "middle", 400, 412, "acknowledgement")
		c.arrow([2]int{b + 2*step, 168}, [2]int{b + 2*step, 216})
		c.number(0, b+2*step, 190)
		c.arrow([2]int{b + 2*step, 270}, [2]int{b + 2*step, 352})
		c.number(5, b+2*step, 326)
		c.arrow([2]int{b + step, 352}, [2]int{b + step, 270})
		c.number(5, b+step, 326)
		c.arrow([2]int{b, 352}, [2]int{b, 270})
		c.number(6, b, 326)
		c.arrow([2]int{b, 216}, [2]int{b, 168})
		c.number(6, b, 190)
		c.arrow([2]int{b, 112}, [2]int{b, 64})
		c.number(6, b, 87)
		c.arrow([2]int{a + 2*step, 352}, [2]int{a + 2*step, 270})
		c.number(8, a+2*step, 326)
		c.arrow([2]int{a + 2*step, 216}, [2]int{a + 2*step, 168})
		c.number(8, a+2*step, 190)
		c.arrow([2]int{a + 2*step, 112}, [2]int{a + 2*step, 64})
		c.number(8, a+2*step, 87)

		for i, line := range []string{
			"The peer has posted a receive: memory for a message.",
			"Send waits for room in the send queue, and calls PostSend.",
			"PostSend writes the request into the queue and rings the doorbell. From here on, the memory is the device's.",
			"The device takes the request, and reads the memory. With a card, the kernel has no part in any step.",
			"Packets go over the wire. Lost ones are sent again, up to Config.RetryCount times.",
			"The peer's device takes the oldest receive, and writes the message to its memory.",
			"It adds a completion. A goroutine that waits wakes through Go's netpoller; no thread waits in C.",
			"The peer's device acknowledges the packets. Its program takes no part in that.",
			"The sender's device adds a completion. Send returns nil, and the memory is the program's again.",
		} {
			y := 446 + 21*i
			c.number(i, 34, y-4)
			c.text("small", "start", 56, y, line)
		}
		for i, line := range []string{"Conn.Write is the", "same without 0 and", "6: the peer's device", "writes where address", "and key say, and its", "program sees nothing."} {
			c.text("small light", "middle", 400, 32+18*i, line)
		}
		for i, line := range []string{"memory that", "program and device", "share"} {
			c.text("small light", "middle", 400, 228+18*i, line)
		}
	},
}
