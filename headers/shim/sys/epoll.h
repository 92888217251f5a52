#pragma once
struct epoll_event;
