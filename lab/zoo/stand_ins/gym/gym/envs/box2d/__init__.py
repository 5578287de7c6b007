from gym.envs.box2d import car_racing as car_racing
