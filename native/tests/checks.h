// The parts of octavo_tests: each says what failed on a line of its own and returns how much did.
#pragma once

int check_homes();                   // homes.cpp
int check_sampling();                // sampling.cpp
int check_schedules(int positions);  // schedules.cpp
